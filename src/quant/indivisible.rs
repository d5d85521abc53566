//! Rows that blocks do not divide, and what is done about them.

use serde::Deserialize;

use super::coding::Coding;
use super::scheme::BlockCode;

/// What becomes of a weight whose rows are not a whole number of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indivisible {
    /// Rows and activations are padded with zeros.
    Pad,
    /// Blocks of the largest of [`Coding::SMALLER`] that divides the rows; where none does, the weight stays a float.
    SmallerBlock,
    /// The weight stays a float.
    KeepFloat,
}

/// What becomes of such weights, by name: the `[quant]` table of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndivisiblePolicy {
    /// Of those that no override names.
    #[serde(rename = "indivisible")]
    pub default: Indivisible,
    /// The first that names a weight decides.
    #[serde(default)]
    pub overrides: Vec<IndivisibleOverride>,
}

/// What becomes of some weights.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndivisibleOverride {
    /// The name of the parameter; `*` stands for any characters, such as the number of a layer.
    pub tensor: String,
    /// What becomes of it.
    pub indivisible: Indivisible,
}

/// How the rows of one weight are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// In blocks; `None` leaves it a float.
    pub coding: Option<Coding>,
    /// Columns, zeros at the end of a row included.
    pub columns: usize,
    /// What people should know, where blocks do not divide the rows.
    pub remark: Option<String>,
}

impl IndivisiblePolicy {
    /// The same for all weights.
    #[must_use]
    pub const fn new(default: Indivisible) -> Self {
        Self { default, overrides: Vec::new() }
    }

    /// How the weight `name` with rows of `columns` is stored.
    #[must_use]
    pub fn fit(&self, name: &str, code: BlockCode, columns: usize) -> Fit {
        if code.scales_in_row(columns).is_some() {
            return Fit { coding: Some(code.into()), columns, remark: None };
        }
        let padded = columns.next_multiple_of(code.block());
        let (coding, stored, done) = match self.of(name) {
            Indivisible::Pad => (Some(code.into()), padded, format!("padded to {padded}")),
            Indivisible::SmallerBlock => match Coding::smaller(code, columns) {
                Some(coding) => (Some(coding), columns, format!("stored in blocks of {}", coding.block())),
                None => (None, columns, "kept as a float, for no smaller block divides them either".to_owned()),
            },
            Indivisible::KeepFloat => (None, columns, "kept as a float".to_owned()),
        };
        let remark = format!("{columns} columns are not a multiple of {}: {done}", code.block());
        Fit { coding, columns: stored, remark: Some(remark) }
    }

    fn of(&self, name: &str) -> Indivisible {
        let named = self.overrides.iter().find(|other| matches(&other.tensor, name));
        named.map_or(self.default, |other| other.indivisible)
    }
}

/// Whether a name is one that a pattern stands for.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(before) else {
        return false;
    };
    rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(indivisible: Indivisible, columns: usize) -> (Option<String>, usize, Option<String>) {
        let Fit { coding, columns, remark } =
            IndivisiblePolicy::new(indivisible).fit("w", BlockCode::Int8Clipped, columns);
        (coding.map(|coding| coding.to_string()), columns, remark)
    }

    #[test]
    fn rows_of_whole_blocks_are_stored_as_such_whatever_the_policy() {
        for indivisible in [Indivisible::Pad, Indivisible::SmallerBlock, Indivisible::KeepFloat] {
            assert_eq!(fit(indivisible, 96), (Some("int8-clipped".to_owned()), 96, None));
        }
    }

    #[test]
    fn each_policy_says_what_it_does_and_why() {
        let remark = |done: &str| Some(format!("48 columns are not a multiple of 32: {done}"));
        let code = |code: &str| Some(code.to_owned());
        assert_eq!(fit(Indivisible::Pad, 48), (code("int8-clipped"), 64, remark("padded to 64")));
        let smaller = remark("stored in blocks of 16");
        assert_eq!(fit(Indivisible::SmallerBlock, 48), (code("int8-clipped/16"), 48, smaller));
        assert_eq!(fit(Indivisible::KeepFloat, 48), (None, 48, remark("kept as a float")));
        let (coding, columns, remark) = fit(Indivisible::SmallerBlock, 33);
        assert_eq!((coding, columns), (None, 33));
        assert!(remark.unwrap().ends_with("kept as a float, for no smaller block divides them either"));
    }

    #[test]
    fn the_first_override_that_names_a_weight_decides() {
        let text = r#"
            indivisible = "pad"
            overrides = [
                { tensor = "layers.*.down_proj.weight", indivisible = "smaller-block" },
                { tensor = "layers.*", indivisible = "keep-float" },
            ]"#;
        let policy: IndivisiblePolicy = toml::from_str(text).unwrap();
        assert_eq!(policy.of("layers.17.mlp.down_proj.weight"), Indivisible::SmallerBlock);
        assert_eq!(policy.of("layers.17.mlp.down_proj.weight.old"), Indivisible::KeepFloat);
        assert_eq!(policy.of("lm_head.weight"), Indivisible::Pad);
    }

    #[test]
    fn a_misspelt_policy_is_refused() {
        let refused = |text: &str| toml::from_str::<IndivisiblePolicy>(text).unwrap_err().to_string();
        assert!(refused("indivisible = \"padd\"").contains("expected one of `pad`, `smaller-block`, `keep-float`"));
        assert!(refused("indivisible = \"pad\"\noverride = []").contains("unknown field `override`"));
    }
}
