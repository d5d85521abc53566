use std::collections::BTreeMap;
use std::path::PathBuf;

use half::f16;

use super::*;
use crate::error::ErrorClass;
use crate::host::decode::StopReason;
use crate::host::reader::{HostAssets, Reading, Session, read_page};
use crate::host::recipe::Variant;
use crate::host::recipe::tests::small;
use crate::runtime::{Outputs, State, TensorData};

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/trained/unlimited-ocr-tiny/tokenizer.json");

type Answer = fn() -> Result<Outputs>;

/// A runtime that "reads" a fixed text and checks what it is fed. The embedding of token t is `[t, -t]`.
#[derive(Debug)]
struct Scripted {
    /// The tokens the page says, stop token included.
    says: Vec<u32>,
    fed: Vec<u32>,
    positions: Vec<i32>,
    states: BTreeMap<String, Vec<usize>>,
    /// Called instead of the function of this name.
    broken: Option<(&'static str, Answer)>,
}

impl Scripted {
    fn saying(says: &[u32]) -> Self {
        let says = says.to_vec();
        Self { says, fed: Vec::new(), positions: Vec::new(), states: BTreeMap::new(), broken: None }
    }

    fn logits(&self, step: usize) -> Result<Outputs> {
        let mut logits = vec![0.0; 512];
        logits[self.says[step] as usize] = 1.0;
        Ok([("logits".to_owned(), HostTensor::floats(vec![1, 1, 512], logits)?)].into_iter().collect())
    }
}

fn floats<'a>(call: &'a Call<'_>, name: &str) -> (&'a [usize], &'a [f32]) {
    let (_, tensor) = call.inputs.iter().find(|(input, _)| *input == name).unwrap();
    match tensor.data() {
        TensorData::Floats(values) => (tensor.shape(), values),
        TensorData::Ints(_) => panic!("{name} holds integers"),
    }
}

impl Runtime for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn reset_states(&mut self, asset: Asset, states: &[State]) -> Result<()> {
        assert_eq!(asset, Asset::Decoder);
        self.states = states.iter().map(|state| (state.name.clone(), state.shape.clone())).collect();
        Ok(())
    }

    fn run(&mut self, call: &Call<'_>) -> Result<Outputs> {
        if let Some((function, answer)) = self.broken
            && function == call.function
        {
            return answer();
        }
        match (call.asset, call.function) {
            (Asset::Vision, "main") => {
                let (shape, pixels) = floats(call, "image");
                assert_eq!(shape, [1, 3, 4, 4]);
                assert!(pixels.iter().all(|&x| x == 1.0), "a white page is 1 after normalisation");
                let tokens = (1..=8).map(|x| x as f32 * 1000.0).collect();
                Ok([("visual_tokens".to_owned(), HostTensor::floats(vec![1, 4, 2], tokens)?)].into_iter().collect())
            }
            (Asset::Decoder, "prefill") => {
                assert_eq!(self.states.len(), 2, "the states are reset before the prefill");
                let (shape, embeds) = floats(call, "inputs_embeds");
                assert_eq!(shape, [1, 18, 2]);
                let image = [1e3, 2e3, 3e3, 4e3, -1.0, -2.0, 5e3, 6e3, 7e3, 8e3, -1.0, -2.0, -3.0, -4.0];
                assert_eq!(embeds[..2], [0.0, 0.0]);
                assert_eq!(embeds[2..16], image);
                assert_eq!(embeds[34..], [16.0, -16.0]);
                self.logits(0)
            }
            (Asset::Decoder, "decode") => {
                let (shape, embeds) = floats(call, "inputs_embeds");
                assert_eq!(shape, [1, 1, 2]);
                assert_eq!(embeds[1], -embeds[0]);
                self.fed.push(embeds[0] as u32);
                let (_, position) = call.inputs.iter().find(|(input, _)| *input == "pos").unwrap();
                assert_eq!(position.shape(), [1]);
                match position.data() {
                    TensorData::Ints(values) => self.positions.extend(values),
                    TensorData::Floats(_) => panic!("the position holds floats"),
                }
                assert_eq!(call.states, ["keyCache", "valueCache"]);
                self.logits(self.fed.len())
            }
            other => panic!("no function {other:?}"),
        }
    }
}

/// A bundle on disk with the small recipe and the trained tokenizer.
fn bundle() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, bytes: Vec<u8>| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let half = |values: &[f32]| values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect();
    let table: Vec<f32> = (0..512).flat_map(|id| [id as f32, -(id as f32)]).collect();
    let prompt = [&[0][..], &[476; 7], &[70, 81, 69, 335, 302, 264, 262, 85, 367, 16]].concat();
    write("assets/embed_tokens.f16", half(&table));
    write("assets/image_newline.f16", half(&[-1.0, -2.0]));
    write("assets/view_seperator.f16", half(&[-3.0, -4.0]));
    write("assets/prompt_input_ids.i32", prompt.iter().flat_map(|id: &i32| id.to_le_bytes()).collect());
    write("assets/recipe.json", small().to_json().unwrap().into_bytes());
    write("tokenizer/tokenizer.json", std::fs::read(TOKENIZER).unwrap());
    folder
}

fn host() -> HostAssets {
    HostAssets::open(bundle().path()).unwrap()
}

fn white_page() -> RgbImage {
    RgbImage::from_pixel(9, 7, ::image::Rgb([255; 3]))
}

fn ids_of(text: &str) -> Vec<u32> {
    Tokenizer::open(TOKENIZER).unwrap().encode(text).unwrap()
}

#[test]
fn a_page_is_read_to_its_stop_token() {
    let says = [ids_of("Total: €67.83"), vec![1]].concat();
    let mut runtime = Scripted::saying(&says);
    let reading = read_page(&mut runtime, &host(), &white_page(), None, &|_| Ok(())).unwrap();
    let expected = Reading { text: "Total: €67.83".to_owned(), ids: says.clone(), stop: StopReason::StopToken(1) };
    assert_eq!(reading, expected);
    // Every token but the stop token was fed, each at the next position after the prefix of 18.
    assert_eq!(runtime.fed, says[..says.len() - 1]);
    let positions: Vec<i32> = (18..18 + runtime.fed.len() as i32).collect();
    assert_eq!(runtime.positions, positions);
    assert_eq!(runtime.states["keyCache"], [3, 1, 2, 64, 8]);
}

#[test]
fn a_token_needs_a_prompt_before_it() {
    let (mut runtime, host) = (Scripted::saying(&[50, 51, 1]), host());
    let mut session = Session::new(&host);
    assert_eq!(session.decode(&mut runtime, 50).unwrap_err().to_string(), "no prompt was read");
    let seen = session.see(&mut runtime, &white_page()).unwrap();
    session.prefill(&mut runtime, &seen).unwrap();
    session.decode(&mut runtime, 50).unwrap();
    assert_eq!((session.length(), session.columns()), (19, None));
    runtime.broken = Some(("prefill", || Err(Error::environment("out of memory"))));
    session.prefill(&mut runtime, &seen).unwrap_err();
    session.decode(&mut runtime, 50).unwrap_err();
}

#[test]
fn a_page_that_does_not_end_stops_at_the_limit() {
    let says: Vec<u32> = (100..200).collect();
    let reading = read_page(&mut Scripted::saying(&says), &host(), &white_page(), None, &|_| Ok(())).unwrap();
    assert_eq!((reading.stop, reading.ids.len()), (StopReason::MaxTokens, 40));
}

#[test]
fn failures_of_the_runtime_name_the_step() {
    fn fails() -> Result<Outputs> {
        Err(Error::environment("out of memory"))
    }
    fn gives_nothing() -> Result<Outputs> {
        Ok(Outputs::default())
    }
    fn gives_too_few() -> Result<Outputs> {
        Ok([("logits".to_owned(), HostTensor::floats(vec![1, 1, 2], vec![0.0; 2])?)].into_iter().collect())
    }
    for (function, answer, expected) in [
        ("main", fails as Answer, "vision: out of memory"),
        ("prefill", gives_nothing, "prefill: no output `logits`: found outputs []"),
        ("decode", gives_too_few, "decode step 1: output `logits`: wrong shape: found [1, 1, 2], expected [1, 1, 512]"),
    ] {
        let mut runtime = Scripted::saying(&[50, 51, 1]);
        runtime.broken = Some((function, answer));
        let error = read_page(&mut runtime, &host(), &white_page(), None, &|_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

/// The error of opening the bundle after `change` was done to one of its files.
fn error_after(file: &str, change: impl FnOnce(PathBuf)) -> Error {
    let folder = bundle();
    change(folder.path().join(file));
    HostAssets::open(folder.path()).unwrap_err()
}

#[test]
fn a_missing_file_is_named() {
    for file in ["assets/recipe.json", "assets/embed_tokens.f16", "tokenizer/tokenizer.json"] {
        let error = error_after(file, |path| std::fs::remove_file(path).unwrap());
        assert!(error.to_string().contains(file), "{error}");
        assert_eq!(error.class(), ErrorClass::Input);
    }
}

#[test]
fn a_file_that_is_too_short_is_named() {
    for file in ["assets/embed_tokens.f16", "assets/view_seperator.f16"] {
        let error = error_after(file, |path| std::fs::write(path, [0]).unwrap()).to_string();
        assert!(error.contains(file) && error.contains("found 1 bytes"), "{error}");
    }
}

#[test]
fn a_prompt_that_the_tokenizer_does_not_make_is_refused() {
    let error = error_after("assets/prompt_input_ids.i32", |path| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(path, bytes).unwrap();
    });
    assert!(error.to_string().contains("prompt_input_ids.i32"), "{error}");
}

#[test]
fn another_tokenizer_is_refused() {
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/structure/unlimited-ocr/tokenizer.json");
    let error = error_after("tokenizer/tokenizer.json", |path| {
        std::fs::copy(other, path).unwrap();
    });
    assert!(error.to_string().starts_with("contract.embeddings.prompt.prefix_length: "), "{error}");
}

#[test]
fn there_is_one_way_to_read_a_prompt() {
    let error = host().choose(Variant::Step).unwrap_err();
    assert_eq!(error.to_string(), "the functions of this bundle leave no choice: found s1");
}
