//! Which functions the decoder has, and what they are called.

use crate::export::ExportRequest;
use crate::export::manifest::GlmOcrSettings;
use crate::grid::Grid;
use crate::host::recipe::{DecoderFunctions, PrefillFunction, Variant};
use crate::models::glm_text::{Call, Query};
use crate::passes::KvForm;
use crate::{Error, Result};

/// The function that an engine calls.
const MAIN: &str = "main";

/// The forms that are exported, for every grid the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forms {
    /// A function for any number of tokens.
    dynamic: bool,
    /// A function for one token.
    step: bool,
    /// Tokens of the function for a chunk of the prompt.
    prefill: Option<usize>,
}

impl Forms {
    /// What is asked for, else the manifest's own.
    ///
    /// # Errors
    /// When the chunk does not fit the context, or no function takes it, or the form of the key/value cache does not take
    /// any number of tokens and a function is to.
    pub(super) fn new(request: &ExportRequest, own: &GlmOcrSettings, (context, kv): (usize, KvForm)) -> Result<Self> {
        let forms = if request.functions.is_empty() { &own.functions } else { &request.functions };
        let has = |form| forms.contains(&form);
        if has(Variant::Dynamic) && kv != KvForm::Dynamic {
            let error = Error::input("a function for any number of tokens has shapes that change from step to step");
            let error = error.at("--functions dynamic").found(format!("the form `{kv}` of the key/value cache"));
            return Err(error.expected("the form `dynamic`").hint("use `--functions pf64`, `s1` or `--kv dynamic`"));
        }
        let chunked = has(Variant::Prefill);
        if request.prefill_chunk.is_some() && !chunked {
            let error = Error::input("no function takes a chunk of the prompt").at(CHUNK);
            return Err(error.hint("add `pf64` to `--functions`, or leave the option out"));
        }
        let chunk = request.prefill_chunk.unwrap_or(own.prefill_chunk);
        if chunked && !(2..=context).contains(&chunk) {
            let error = Error::input("the chunk does not fit the context").at(CHUNK).found(chunk);
            return Err(error.expected(format!("2 to {context}, the tokens of --max-context")));
        }
        Ok(Self {
            dynamic: has(Variant::Dynamic),
            step: chunked || has(Variant::Step),
            prefill: chunked.then_some(chunk),
        })
    }

    /// Whether the function that an engine calls takes one token only.
    pub(super) const fn steps(self) -> bool {
        self.step
    }

    /// Whether a function takes any number of tokens.
    pub(super) const fn has_dynamic(self) -> bool {
        self.dynamic
    }

    /// The names of a grid's functions.
    pub(super) fn functions(self, name: GridName) -> DecoderFunctions {
        DecoderFunctions {
            dynamic: self.dynamic.then(|| name.of(if self.step { "dynamic" } else { MAIN })),
            step: self.step.then(|| name.of(MAIN)),
            prefill: self.prefill.map(|tokens| PrefillFunction { function: name.of("prefill"), tokens }),
        }
    }
}

const CHUNK: &str = "--prefill-chunk";

/// How the functions of a grid are told from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GridName {
    /// The default grid.
    Default,
    /// A further one.
    Further(Grid),
}

impl GridName {
    /// A name of this grid.
    pub(super) fn of(self, name: &str) -> String {
        match self {
            Self::Default => name.to_owned(),
            Self::Further(grid) => format!("{name}_{grid}"),
        }
    }

    /// The grid's function of the vision asset.
    pub(super) fn vision(self) -> String {
        self.of(MAIN)
    }
}

/// What builds a grid's functions, in the order in which they are written.
pub(super) fn calls(functions: &DecoderFunctions, grid: Grid) -> Vec<Call> {
    let call = |name: &String, query| Call { name: name.clone(), grid, query };
    let step = functions.step.iter().map(|name| call(name, Query::Tokens(1)));
    let prefill = functions.prefill.iter().map(|prefill| call(&prefill.function, Query::Tokens(prefill.tokens)));
    let dynamic = functions.dynamic.iter().map(|name| call(name, Query::Any));
    step.chain(prefill).chain(dynamic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::{Family, Manifest};

    fn forms(functions: &[Variant], chunk: Option<usize>) -> Result<Forms> {
        forms_in(KvForm::Dynamic, functions, chunk)
    }

    fn forms_in(kv: KvForm, functions: &[Variant], chunk: Option<usize>) -> Result<Forms> {
        let Family::GlmOcr(own) = Manifest::find("glm-ocr").unwrap().family else { panic!("another family") };
        let request =
            ExportRequest { functions: functions.to_vec(), prefill_chunk: chunk, ..ExportRequest::new("glm-ocr") };
        Forms::new(&request, &own, (128, kv))
    }

    fn names(functions: &[Variant], name: GridName) -> Vec<String> {
        let grid = Grid::new(2, 3).unwrap();
        let calls = calls(&forms(functions, None).unwrap().functions(name), grid);
        assert!(calls.iter().all(|call| call.grid == grid));
        calls.into_iter().map(|call| call.name).collect()
    }

    #[test]
    fn an_engine_finds_main_whatever_was_asked_for() {
        use Variant::{Dynamic, Prefill, Step};
        let default = |forms: &[Variant]| names(forms, GridName::Default);
        assert_eq!(default(&[]), ["main", "prefill"]);
        assert_eq!(default(&[Step]), ["main"]);
        assert_eq!(default(&[Dynamic]), ["main"]);
        assert_eq!(default(&[Dynamic, Step]), ["main", "dynamic"]);
        assert_eq!(default(&[Dynamic, Step, Prefill, Step]), ["main", "prefill", "dynamic"]);
    }

    #[test]
    fn further_grids_have_their_size_in_the_name() {
        let further = GridName::Further(Grid::new(32, 24).unwrap());
        assert_eq!(names(&[Variant::Prefill], further), ["main_32x24", "prefill_32x24"]);
        assert_eq!(further.vision(), "main_32x24");
    }

    #[test]
    fn a_chunk_that_does_not_fit_is_refused() {
        for (chunk, expected) in
            [(1, "--prefill-chunk: the chunk does not fit the context: found 1, expected 2 to 128"), (129, "found 129")]
        {
            let error = forms(&[], Some(chunk)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(forms(&[], Some(128)).unwrap().prefill, Some(128));
    }

    #[test]
    fn any_number_of_tokens_needs_shapes_that_change() {
        for kv in KvForm::ALL {
            assert_eq!(forms_in(kv, &[], None).unwrap(), forms(&[], None).unwrap(), "{kv}");
            let dynamic = forms_in(kv, &[Variant::Step, Variant::Dynamic], None);
            assert_eq!(dynamic.is_ok(), kv == KvForm::Dynamic, "{kv}");
        }
        let error = forms_in(KvForm::Shift, &[Variant::Dynamic], None).unwrap_err();
        assert!(error.to_string().starts_with("--functions dynamic: a function for any number of tokens"), "{error}");
        assert!(error.hint_text().is_some_and(|hint| hint.contains("--kv dynamic")));
    }

    #[test]
    fn a_chunk_that_nobody_takes_is_refused() {
        let error = forms(&[Variant::Step], Some(64)).unwrap_err();
        assert_eq!(error.to_string(), "--prefill-chunk: no function takes a chunk of the prompt");
    }
}
