//! The tokens that end the text, from every file of a checkpoint that names some.

use crate::checkpoint::{Checkpoint, Json};
use crate::host::recipe::StopToken;
use crate::{Error, Result};

const FIELD: &str = "eos_token_id";

/// The tokens that config.json and generation_config.json name, in the order in which they first do, each with the first
/// place in either file that names it. `sections` are those of config.json beside its outermost one, which often repeat
/// it.
///
/// # Errors
/// When no token is named, or one that is not below `vocabulary`.
pub(super) fn read(checkpoint: &Checkpoint, sections: &[&str], vocabulary: usize) -> Result<Vec<StopToken>> {
    let config = checkpoint.config();
    let generation = checkpoint.side_json("generation_config.json")?;
    let mut named = vec![("config.json", Some(config.clone()))];
    named.extend(sections.iter().map(|section| ("config.json", config.optional(section))));
    named.push(("generation_config.json", generation.as_ref().map(|json| json.root())));
    let mut stop: Vec<StopToken> = Vec::new();
    for (file, section) in named {
        let Some(field) = section.and_then(|section| section.optional(FIELD)) else { continue };
        let origin = format!("{file}: {}", field.path());
        for id in ids(&field, vocabulary)? {
            match stop.iter_mut().find(|known| known.id == id) {
                Some(known) if known.origin.split(", ").any(|other| other.starts_with(file)) => {}
                Some(known) => known.origin += &format!(", {origin}"),
                None => stop.push(StopToken { id, origin: origin.clone() }),
            }
        }
    }
    if stop.is_empty() {
        return Err(Error::input("no token ends the text").at(checkpoint.location()).expected(format!("`{FIELD}`")));
    }
    Ok(stop)
}

/// One token or a list of them.
fn ids(field: &Json<'_>, vocabulary: usize) -> Result<Vec<u32>> {
    let id = |json: &Json<'_>| {
        let id = json.as_u64()?;
        let known = u32::try_from(id).ok().filter(|id| (*id as usize) < vocabulary);
        known
            .ok_or_else(|| json.error("not a token of the model").found(id).expected(format!("less than {vocabulary}")))
    };
    match field.as_list() {
        Ok(list) => list.iter().map(id).collect(),
        Err(_) => Ok(vec![id(field)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint with these two files and one small tensor.
    fn checkpoint(config: &'static str, generation: Option<&'static str>) -> Checkpoint {
        let header = br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let mut tensors = (header.len() as u64).to_le_bytes().to_vec();
        tensors.extend(header);
        tensors.extend([0; 4]);
        let mut files: Vec<(&str, &'static [u8])> =
            vec![("config.json", config.as_bytes()), ("model.safetensors", tensors.leak())];
        files.extend(generation.map(|text| ("generation_config.json", text.as_bytes())));
        Checkpoint::built_in("test", &files).unwrap()
    }

    fn stop(config: &'static str, generation: Option<&'static str>) -> Result<Vec<(u32, String)>> {
        let stop = read(&checkpoint(config, generation), &["text_config"], 100)?;
        Ok(stop.into_iter().map(|token| (token.id, token.origin)).collect())
    }

    #[test]
    fn every_token_is_there_once_with_the_files_that_name_it() {
        let stop = stop(
            r#"{"eos_token_id": 7, "text_config": {"eos_token_id": [5, 7]}}"#,
            Some(r#"{"eos_token_id": [5, 9, 9]}"#),
        );
        let expected = [
            (7, "config.json: eos_token_id"),
            (5, "config.json: text_config.eos_token_id, generation_config.json: eos_token_id"),
            (9, "generation_config.json: eos_token_id"),
        ];
        assert_eq!(stop.unwrap(), expected.map(|(id, origin)| (id, origin.to_owned())));
    }

    #[test]
    fn one_file_is_enough_and_none_is_not() {
        assert_eq!(stop("{}", Some(r#"{"eos_token_id": 3}"#)).unwrap().len(), 1);
        assert_eq!(stop(r#"{"eos_token_id": [3, 4]}"#, None).unwrap().len(), 2);
        let nothing = Some(r#"{"eos_token_id": null}"#);
        assert!(stop(r#"{"eos_token_id": []}"#, nothing).unwrap_err().to_string().contains("no token ends the text"));
    }

    #[test]
    fn what_is_no_token_of_the_model_is_refused_with_its_place() {
        for (config, expected) in [
            (
                r#"{"eos_token_id": [1, 100]}"#,
                "eos_token_id[1]: not a token of the model: found 100, expected less than 100",
            ),
            (r#"{"eos_token_id": 4294967296}"#, "eos_token_id: not a token of the model"),
            (r#"{"text_config": {"eos_token_id": -1}}"#, "text_config.eos_token_id: unexpected value"),
            (r#"{"eos_token_id": "7"}"#, "eos_token_id: unexpected value"),
        ] {
            let error = stop(config, None).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
