use super::*;
use crate::checkpoint::JsonDocument;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/structure/glm-ocr");

fn settings() -> Vec<u8> {
    std::fs::read(format!("{FOLDER}/preprocessor_config.json")).unwrap()
}

fn read(settings: &[u8]) -> Result<PageProcessor> {
    PageProcessor::read(&JsonDocument::parse("preprocessor_config.json", settings).unwrap().root())
}

fn processor() -> PageProcessor {
    read(&settings()).unwrap()
}

fn page(name: &str) -> RgbImage {
    image::open(format!("{FOLDER}/{name}")).unwrap()
}

/// Pages and the sizes that `smart_resize` of transformers 5.24 gives them, width first.
const SIZES: [([u32; 2], [u32; 2]); 32] = [
    ([333, 250], [336, 252]),
    ([140, 112], [140, 112]),
    ([448, 224], [448, 224]),
    ([6000, 4000], [2688, 1792]),
    ([1700, 2200], [1708, 2212]),
    ([100, 100], [112, 112]),
    ([1, 1], [84, 84]),
    ([1, 200], [28, 5600]),
    ([13, 27], [56, 140]),
    ([27, 5000], [28, 5180]),
    ([28, 28], [84, 84]),
    ([14, 56], [56, 168]),
    ([42, 42], [84, 84]),
    ([70, 98], [56, 112]),
    ([3003, 3211], [2100, 2268]),
    ([2480, 3508], [1820, 2604]),
    ([16384, 82], [16380, 84]),
    ([16384, 16384], [2184, 2184]),
    ([5, 900], [28, 5040]),
    ([34, 329], [28, 336]),
    ([12, 9], [112, 84]),
    ([14160, 91], [14168, 84]),
    ([461, 4], [3220, 28]),
    ([443, 4159], [448, 4172]),
    ([151, 1231], [140, 1232]),
    ([949, 6922], [812, 5908]),
    ([71, 7955], [84, 7952]),
    ([130, 40], [168, 56]),
    ([697, 7464], [644, 7168]),
    ([3719, 13541], [1148, 4172]),
    ([3874, 10514], [1316, 3612]),
    ([946, 7], [3780, 28]),
];

#[test]
fn sizes_equal_those_of_transformers() {
    for ([width, height], size) in SIZES {
        assert_eq!(processor().size(width, height).unwrap(), size, "{width} x {height}");
    }
}

#[test]
fn pages_that_are_too_narrow_are_refused() {
    for (width, height) in [(1, 201), (5001, 25), (0, 7), (7, 0), (0, 0)] {
        let error = processor().size(width, height).unwrap_err().to_string();
        assert!(error.contains(&format!("{width} x {height} pixels")), "{error}");
    }
}

#[test]
fn a_page_is_resized_to_the_bytes_of_the_reference() {
    assert_eq!(processor().resize(&page("page_resize.png")).unwrap(), page("preprocess/resized.png"));
    assert_eq!(processor().resize(&page("page.png")).unwrap(), page("page.png"));
}

/// Computed from the layout that the reference tensors were checked against when they were cut.
#[test]
fn patches_hold_every_sample_twice_and_in_merge_order() {
    let (processor, page) = (processor(), page("preprocess/resized.png"));
    let tensor = processor.patches(&page).unwrap();
    let tokens = [(page.width() / 28) as usize, (page.height() / 28) as usize];
    assert_eq!(tensor.shape(), [tokens[0] * tokens[1] * 4, 1176]);
    let TensorData::Floats(values) = tensor.data() else { panic!("patches are floats") };
    for (i, &value) in values.iter().enumerate() {
        let (patch, element) = (i / 1176, i % 1176);
        let (channel, y, x) = (element / 392, element % 196 / 14, element % 14);
        let (token, within) = (patch / 4, patch % 4);
        let y = token / tokens[0] * 28 + within / 2 * 14 + y;
        let x = token % tokens[0] * 28 + within % 2 * 14 + x;
        let sample = f32::from(page.get_pixel(x as u32, y as u32).0[channel]);
        let Normalisation { mean, std } = processor.normalisation;
        assert_eq!(value, (sample / 255.0 - mean[channel]) / std[channel], "element {i}");
    }
}

#[test]
fn only_pages_of_whole_tokens_have_patches() {
    for (width, height) in [(28, 27), (14, 28), (0, 28)] {
        assert!(processor().patches(&RgbImage::new(width, height)).is_err(), "{width} x {height}");
    }
}

#[test]
fn settings_that_are_not_implemented_are_refused_by_name() {
    let settings = String::from_utf8(settings()).unwrap();
    let cases = [
        (r#""do_rescale": true"#, r#""do_rescale": false"#, "do_rescale: not supported"),
        (r#""patch_size": 14"#, r#""patch_size": 0"#, "patch_size: out of range"),
        (r#""merge_size": 2"#, r#""merge_size": 4294967298"#, "merge_size: out of range"),
        (r#""shortest_edge": 12544"#, r#""shortest_edge": 9633793"#, "size: no page"),
        ("0.27577711\n", "0\n", "image_std: a standard deviation"),
        ("0.40821073\n", "0.4, 0.4\n", "image_mean: three channels"),
    ];
    for (from, to, expected) in cases {
        assert!(settings.contains(from), "{from}");
        let error = read(settings.replace(from, to).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
