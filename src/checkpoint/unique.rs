//! Reading JSON maps in which a key may occur once.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Error, IgnoredAny, MapAccess};

/// Reads the entries of `map`. Ordinary map types let the last of two equal keys win without a word; here that is an
/// error, and an error in a value names its key. The value of `skipped` is not read.
pub(super) fn unique_entries<'de, A, V>(mut map: A, skipped: Option<&str>) -> Result<BTreeMap<String, V>, A::Error>
where
    A: MapAccess<'de>,
    V: Deserialize<'de>,
{
    let mut entries = BTreeMap::new();
    let mut skipped_before = false;
    while let Some(key) = map.next_key::<String>()? {
        let twice = if Some(key.as_str()) == skipped {
            map.next_value::<IgnoredAny>()?;
            std::mem::replace(&mut skipped_before, true)
        } else {
            let value = map.next_value().map_err(|e| A::Error::custom(format_args!("tensor `{key}`: {e}")))?;
            entries.insert(key.clone(), value).is_some()
        };
        if twice {
            return Err(A::Error::custom(format_args!("duplicate tensor name `{key}`")));
        }
    }
    Ok(entries)
}
