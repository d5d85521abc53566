//! Reading settings that have several spellings in config.json.

use std::ops::RangeInclusive;

use crate::Result;
use crate::checkpoint::Json;

/// Largest extent that is believed; the product of any two can be computed.
pub(super) const MAX_EXTENT: usize = 1 << 24;
/// Most layers of a tower or decoder, several times those of the largest published models.
pub(super) const MAX_LAYERS: usize = 1024;

/// Reads an extent, which is at least 1.
pub(super) fn extent(json: &Json<'_>) -> Result<usize> {
    within(json, json.as_usize()?, 1..=MAX_EXTENT)
}

/// Reads a number of layers, which is at least 1.
pub(super) fn layers(json: &Json<'_>) -> Result<usize> {
    within(json, json.as_usize()?, 1..=MAX_LAYERS)
}

/// Refuses a value out of range.
pub(super) fn within(json: &Json<'_>, value: usize, range: RangeInclusive<usize>) -> Result<usize> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(json.error("out of range").found(value).expected(format!("{} to {}", range.start(), range.end())))
}

/// The value at the first of several paths (`a.b.c`) that is there and not null. All that are there must agree.
pub(super) fn agree<'a, T: PartialEq + std::fmt::Debug>(
    root: &Json<'a>,
    paths: &[&str],
    read: impl Fn(&Json<'a>) -> Result<T>,
) -> Result<Option<T>> {
    let mut found: Option<(String, T)> = None;
    for &path in paths {
        let Some(json) = lookup(root, path) else { continue };
        let value = read(&json)?;
        match &found {
            Some((first, known)) if *known != value => {
                let what = format!("it disagrees with {first}");
                return Err(json.error(what).found(format!("{value:?}")).expected(format!("{known:?}")));
            }
            Some(_) => {}
            None => found = Some((json.path(), value)),
        }
    }
    Ok(found.map(|(_, value)| value))
}

/// As [`agree`], and one must be there.
pub(super) fn require<'a, T: PartialEq + std::fmt::Debug>(
    root: &Json<'a>,
    paths: &[&str],
    read: impl Fn(&Json<'a>) -> Result<T>,
) -> Result<T> {
    agree(root, paths, read)?.ok_or_else(|| root.error("a setting is missing").expected(paths.join(" or ")))
}

/// Refuses a setting that is there with another value than the only one implemented.
pub(super) fn only<'a, T: PartialEq + std::fmt::Debug>(
    root: &Json<'a>,
    path: &str,
    read: impl Fn(&Json<'a>) -> Result<T>,
    supported: T,
) -> Result<()> {
    lookup(root, path).map_or(Ok(()), |json| is(&json, read, &supported))
}

/// Refuses a value that is not the only one implemented.
pub(super) fn is<'a, T: PartialEq + std::fmt::Debug>(
    json: &Json<'a>,
    read: impl Fn(&Json<'a>) -> Result<T>,
    supported: &T,
) -> Result<()> {
    let value = read(json)?;
    if value == *supported {
        return Ok(());
    }
    Err(json.error("not supported").found(format!("{value:?}")).expected(format!("{supported:?}")))
}

/// One rotary base wherever it is written in any of the `sections`, each a prefix such as `text_config.` or the empty
/// one; 10000 where it is not, which is the constant of the models' code. Scaled angles are refused.
pub(super) fn rope_theta(root: &Json<'_>, sections: &[&str]) -> Result<f64> {
    let in_sections = |names: &[&str]| -> Vec<String> {
        sections.iter().flat_map(|section| names.iter().map(move |name| format!("{section}{name}"))).collect()
    };
    for path in in_sections(&["rope_scaling", "rope_parameters"]) {
        if let Some(rope) = lookup(root, &path) {
            refuse_scaling(&rope)?;
        }
    }
    let paths = in_sections(&["rope_theta", "rope_parameters.rope_theta"]);
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    agree(root, &paths, |json| match json.as_f64()? {
        theta if theta > 1.0 => Ok(theta),
        theta => Err(json.error("a rotary base must be above 1").found(theta)),
    })
    .map(|theta| theta.unwrap_or(10_000.0))
}

/// A scale may come without the name of its kind.
fn refuse_scaling(rope: &Json<'_>) -> Result<()> {
    for name in ["type", "rope_type"] {
        only(rope, name, Json::as_str, "default")?;
    }
    only(rope, "factor", Json::as_f64, 1.0)?;
    only(rope, "partial_rotary_factor", Json::as_f64, 1.0)
}

/// The [`extent`] at `name`.
pub(super) fn size(section: &Json<'_>, name: &str) -> Result<usize> {
    extent(&section.field(name)?)
}

/// As [`size`]; `default` where the setting is missing or null.
pub(super) fn size_or(section: &Json<'_>, name: &str, default: usize) -> Result<usize> {
    section.optional(name).map_or(Ok(default), |json| extent(&json))
}

/// What is added to the variance or mean square in norms; `default` where the setting is missing or null.
pub(super) fn epsilon_or(section: &Json<'_>, name: &str, default: f32) -> Result<f32> {
    section.optional(name).map_or(Ok(default), |json| epsilon(&json))
}

/// Reads what is added to the variance or mean square in norms.
pub(super) fn epsilon(json: &Json<'_>) -> Result<f32> {
    let epsilon = json.as_f64()? as f32;
    if epsilon > 0.0 && epsilon < 1.0 {
        return Ok(epsilon);
    }
    Err(json.error("out of range").found(epsilon).expected("between 0 and 1"))
}

/// The value at `a.b.c`, unless it is missing or null.
pub(super) fn lookup<'a>(root: &Json<'a>, path: &str) -> Option<Json<'a>> {
    let mut parts = path.split('.');
    let first = root.optional(parts.next()?)?;
    parts.try_fold(first, |json, part| json.optional(part))
}
