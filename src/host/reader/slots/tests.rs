use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::host::decode::StopReason;
use crate::host::reader::{HostAssets, Session, read_page};
use crate::host::recipe::Contract;
use crate::host::recipe::slots::tests::small;
use crate::runtime::{Outputs, State, TensorData};

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/trained/glm-ocr-tiny/tokenizer.json");

/// The prompt as transformers makes it, around the six slots.
const BEFORE: [u32; 5] = [466, 468, 471, 198, 474];
const AFTER: [u32; 14] = [475, 51, 358, 83, 307, 410, 78, 70, 77, 273, 319, 25, 472, 198];

fn prompt() -> Vec<u32> {
    [&BEFORE[..], &[512, 513, 514, 515, 516, 517], &AFTER].concat()
}

/// A call of the decoder: the function, the tokens fed, and how many there are with them.
type Fed = (String, Vec<u32>, usize);

/// A runtime that "reads" a fixed text and keeps what it is fed.
#[derive(Debug, Default)]
struct Scripted {
    /// The tokens the page says, stop token included.
    says: Vec<u32>,
    /// The vision function called last, and its patches.
    seen: Option<(String, Vec<f32>)>,
    fed: Vec<Fed>,
    states: BTreeMap<String, Vec<usize>>,
    /// The visual tokens of the first call of the decoder.
    image: Option<HostTensor>,
}

fn input<'c>(call: &'c Call<'_>, name: &str) -> &'c HostTensor {
    &call.inputs.iter().find(|(input, _)| *input == name).unwrap().1
}

fn ints(call: &Call<'_>, name: &str) -> Vec<i32> {
    match input(call, name).data() {
        TensorData::Ints(values) => values.clone(),
        TensorData::Floats(_) => panic!("{name} holds floats"),
    }
}

impl Scripted {
    fn saying(says: &[u32]) -> Self {
        Self { says: says.to_vec(), ..Self::default() }
    }

    fn see(&mut self, call: &Call<'_>) -> HostTensor {
        let patches = input(call, "patches");
        assert_eq!(patches.shape(), [24, 24], "6 tokens of 4 patches, of 3 channels x 2 frames x 2 x 2");
        let TensorData::Floats(values) = patches.data() else { panic!("patches are floats") };
        self.seen = Some((call.function.to_owned(), values.clone()));
        HostTensor::floats(vec![6, 2], (0..12).map(|x| x as f32).collect()).unwrap()
    }

    /// What every call has to keep; the logits say the text in the last row, and token 0 in all others.
    fn read(&mut self, call: &Call<'_>) -> HostTensor {
        assert_eq!(call.states, ["keyCache", "valueCache"]);
        assert_eq!(self.states["valueCache"], [3, 1, 2, 64, 8], "the states are reset before the prompt");
        let ids = ints(call, "input_ids");
        let positions = ints(call, "position_ids");
        assert_eq!(input(call, "input_ids").shape(), [1, ids.len()]);
        assert_eq!(input(call, "position_ids").shape(), [1, positions.len()]);
        assert_eq!(positions, (0..positions.len() as i32).collect::<Vec<_>>());
        assert_eq!((ints(call, "rope_shift_start"), ints(call, "rope_shift_amount")), (vec![11], vec![3]));
        let image = input(call, "image_embeds");
        assert!(self.image.get_or_insert_with(|| image.clone()).shares_with(image), "the same elements in every call");
        assert_eq!(image.shape(), [6, 2]);

        let before = self.fed.last().map_or(0, |(_, _, total)| *total);
        assert_eq!(positions.len(), before + ids.len(), "no token is left out or fed twice");
        let fed = ids.iter().map(|id| u32::try_from(*id).unwrap()).collect();
        self.fed.push((call.function.to_owned(), fed, positions.len()));
        let mut logits = vec![0.0; ids.len() * 512];
        logits.iter_mut().step_by(512).for_each(|first| *first = 1.0);
        let said = (positions.len()).checked_sub(25).map_or(1, |step| self.says[step]);
        let row = (ids.len() - 1) * 512;
        logits[row] = 0.0;
        logits[row + said as usize] = 1.0;
        HostTensor::floats(vec![1, ids.len(), 512], logits).unwrap()
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
        let (name, tensor) = match call.asset {
            Asset::Vision => ("image_embeds", self.see(call)),
            Asset::Decoder => ("logits", self.read(call)),
        };
        Ok([(name.to_owned(), tensor)].into_iter().collect())
    }
}

/// A bundle on disk with the small recipe as `change` leaves it, the trained tokenizer and the prompts.
fn bundle(change: impl FnOnce(&mut SlotsContract)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = small();
    match &mut recipe.contract {
        Contract::Slots(contract) => change(contract),
        Contract::Embeddings(_) => unreachable!(),
    }
    let write = |path: &str, bytes: &[u8]| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let ids: Vec<u8> = prompt().iter().flat_map(|id| id.to_le_bytes()).collect();
    write("assets/prompt_input_ids.i32", &ids);
    write("assets/prompt_input_ids_3x2.i32", &ids);
    write("assets/recipe.json", recipe.to_json().unwrap().as_bytes());
    write("tokenizer/tokenizer.json", &std::fs::read(TOKENIZER).unwrap());
    folder
}

fn host() -> HostAssets {
    HostAssets::open(bundle(|_| ()).path()).unwrap()
}

/// A white page of `width` x `height` pixels.
fn page(width: u32, height: u32) -> RgbImage {
    RgbImage::from_pixel(width, height, ::image::Rgb([255; 3]))
}

/// Reads a page with `variant`, of which the text is two tokens and the stop token.
fn fed_by(variant: Option<Variant>, host: &mut HostAssets) -> Vec<Fed> {
    variant.map_or(Ok(()), |variant| host.choose(variant)).unwrap();
    let mut runtime = Scripted::saying(&[50, 51, 471]);
    let reading = read_page(&mut runtime, host, &page(12, 8), None, &|_| Ok(())).unwrap();
    assert_eq!((reading.ids.as_slice(), reading.stop), (&[50, 51, 471][..], StopReason::StopToken(471)));
    let ids: Vec<u32> = runtime.fed.iter().flat_map(|(_, ids, _)| ids.clone()).collect();
    assert_eq!(ids, [prompt(), vec![50, 51]].concat());
    runtime.fed
}

/// Which functions were called, with how many tokens each.
fn shapes(fed: &[Fed]) -> Vec<(&str, usize)> {
    fed.iter().map(|(function, ids, _)| (function.as_str(), ids.len())).collect()
}

#[test]
fn the_prompt_is_read_at_once_by_a_function_of_any_length() {
    let fed = fed_by(Some(Variant::Dynamic), &mut host());
    assert_eq!(shapes(&fed), [("dynamic", 25), ("dynamic", 1), ("dynamic", 1)]);
    assert_eq!(fed[2].2, 27);
}

#[test]
fn the_prompt_is_read_token_by_token_by_a_function_of_one() {
    let fed = fed_by(Some(Variant::Step), &mut host());
    assert_eq!(shapes(&fed), [("main", 1); 27]);
}

#[test]
fn whole_chunks_come_first_and_the_rest_token_by_token() {
    // 25 = 6 x 4 + 1.
    let fed = fed_by(Some(Variant::Prefill), &mut host());
    assert_eq!(shapes(&fed), [&[("prefill", 4); 6][..], &[("main", 1); 3]].concat());
    // 25 = 3 x 7 + 4.
    let mut sevens = HostAssets::open(bundle(|contract| chunk(contract, 7)).path()).unwrap();
    let fed = fed_by(Some(Variant::Prefill), &mut sevens);
    assert_eq!(shapes(&fed), [&[("prefill", 7); 3][..], &[("main", 1); 6]].concat());
    assert_eq!(fed[3], ("main".to_owned(), vec![319], 22));
}

#[test]
fn a_prompt_of_whole_chunks_leaves_no_rest_and_a_short_one_has_none() {
    let mut fives = HostAssets::open(bundle(|contract| chunk(contract, 5)).path()).unwrap();
    assert_eq!(shapes(&fed_by(None, &mut fives)), [&[("prefill", 5); 5][..], &[("main", 1); 2]].concat());
    let mut long = HostAssets::open(bundle(|contract| chunk(contract, 26)).path()).unwrap();
    assert_eq!(shapes(&fed_by(None, &mut long)), [("main", 1); 27]);
}

/// Makes every prefill function one of `tokens`.
fn chunk(contract: &mut SlotsContract, tokens: usize) {
    contract.grids.iter_mut().filter_map(|grid| grid.decoder.prefill.as_mut()).for_each(|p| p.tokens = tokens);
}

/// Takes away functions of every grid.
fn without(contract: &mut SlotsContract, take: impl Fn(&mut DecoderFunctions)) {
    contract.grids.iter_mut().for_each(|grid| take(&mut grid.decoder));
    if !contract.variants().contains(&Variant::Dynamic) {
        contract.symbols.retain(|symbol| symbol.input != "input_ids");
    }
}

#[test]
fn the_quickest_functions_are_used_where_none_are_chosen() {
    let first = |change: fn(&mut SlotsContract)| {
        let fed = fed_by(None, &mut HostAssets::open(bundle(change).path()).unwrap());
        fed[0].0.clone()
    };
    assert_eq!(first(|_| ()), "prefill");
    assert_eq!(first(|contract| without(contract, |functions| functions.prefill = None)), "dynamic");
    let steps_only = |functions: &mut DecoderFunctions| (functions.prefill, functions.dynamic) = (None, None);
    let fed = fed_by(None, &mut HostAssets::open(bundle(|contract| without(contract, steps_only)).path()).unwrap());
    assert_eq!(shapes(&fed), [("main", 1); 27]);
}

#[test]
fn functions_that_are_not_there_are_refused_and_the_others_named() {
    let folder = bundle(|contract| without(contract, |functions| functions.dynamic = None));
    let mut host = HostAssets::open(folder.path()).unwrap();
    let error = host.choose(Variant::Dynamic).unwrap_err();
    assert_eq!(error.to_string(), "the bundle does not have these functions: found dynamic, expected s1 or pf64");
    fed_by(None, &mut host);
}

#[test]
fn a_page_goes_to_the_grid_of_its_own_size_or_else_of_the_closest_aspect() {
    let host = host();
    for ([width, height], grid) in [
        ([12, 8], 0),
        ([8, 12], 1),
        // Of this size after rounding to whole visual tokens.
        ([9, 11], 1),
        ([24, 16], 0),
        ([16, 24], 1),
        ([400, 4], 0),
        ([4, 400], 1),
        // Of the same distance the first one.
        ([40, 40], 0),
    ] {
        assert_eq!(host.grid_of(&page(width, height)).unwrap(), grid, "{width} x {height}");
    }
    let error = host.grid_of(&page(1, 900)).unwrap_err().to_string();
    assert!(error.starts_with("the page is too narrow"), "{error}");
}

/// Of the patches of a page in its grid: the vision function, how many samples are the ground's, how many the page's.
fn seen(page: &RgbImage) -> (String, usize, usize) {
    let (mut runtime, host) = (Scripted::default(), host());
    let seen = Session::new(&host).see(&mut runtime, page).unwrap();
    assert_eq!(seen.values(), (0..12).map(|x| x as f32).collect::<Vec<_>>());
    let (function, patches) = runtime.seen.unwrap();
    let count = |sample: f32| patches.iter().filter(|value| **value == sample).count();
    (function, count(-1.0), count(1.0))
}

#[test]
fn a_page_of_its_own_size_is_stretched_and_any_other_letterboxed() {
    let samples = 24 * 24;
    assert_eq!(seen(&page(12, 8)), ("main".to_owned(), 0, samples));
    assert_eq!(seen(&page(9, 11)), ("main_3x2".to_owned(), 0, samples), "stretched from another aspect");
    assert_eq!(seen(&page(24, 16)), ("main".to_owned(), 0, samples), "padded by nothing");
    // 24 x 8 pixels become 12 x 4, with 2 rows of the ground above and below.
    assert_eq!(seen(&page(24, 8)), ("main".to_owned(), samples / 2, samples / 2));
    assert_eq!(seen(&page(8, 24)), ("main_3x2".to_owned(), samples / 2, samples / 2));
}

#[test]
fn every_grid_calls_its_own_functions() {
    let (mut runtime, host) = (Scripted::saying(&[471]), host());
    read_page(&mut runtime, &host, &page(8, 12), None, &|_| Ok(())).unwrap();
    assert_eq!(shapes(&runtime.fed), [&[("prefill_3x2", 4); 6][..], &[("main_3x2", 1)]].concat());
    let error = Session::new(&host).see_in(&mut runtime, 2, &page(8, 12)).unwrap_err();
    assert_eq!(error.to_string(), "vision: there is no such grid: found 2, expected less than 2");
}

/// The error of opening the bundle after `change` was done to its folder.
fn error_after(change: impl FnOnce(&Path)) -> String {
    let folder = bundle(|_| ());
    change(folder.path());
    HostAssets::open(folder.path()).unwrap_err().to_string()
}

#[test]
fn a_prompt_that_the_tokenizer_does_not_make_is_refused() {
    let error = error_after(|folder| {
        let path = folder.join("assets/prompt_input_ids_3x2.i32");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(path, bytes).unwrap();
    });
    assert!(error.contains("prompt_input_ids_3x2.i32: the stored prompt is not"), "{error}");
}

#[test]
fn a_prompt_of_another_layout_names_the_grid() {
    let folder = bundle(|contract| contract.prompt.rendered.insert(0, 'a'));
    let error = HostAssets::open(folder.path()).unwrap_err();
    let sentence = error.to_string();
    assert!(sentence.starts_with("contract.slots.grids[0]: the prompt is laid out otherwise"), "{sentence}");
    assert!(error.hint_text().is_some());
    let folder = bundle(|contract| contract.prompt.rendered.push_str("<|image|>"));
    let sentence = HostAssets::open(folder.path()).unwrap_err().to_string();
    assert!(sentence.contains("the prompt does not have one image: found 2 placeholders"), "{sentence}");
}
