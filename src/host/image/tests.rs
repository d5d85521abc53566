use std::io::Cursor;

use ::image::{DynamicImage, ExtendedColorType, ImageEncoder, ImageFormat, RgbImage, codecs::png::PngEncoder};
use sha2::{Digest, Sha256};

use super::*;
use crate::error::ErrorClass;
use crate::runtime::TensorData;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/structure/unlimited-ocr");
const GREY: [u8; 3] = [127, 127, 127];

fn golden(name: &str) -> RgbImage {
    open(format!("{FOLDER}/{name}")).unwrap()
}

fn first_difference(left: &RgbImage, right: &RgbImage) -> Option<(u32, u32)> {
    assert_eq!(left.dimensions(), right.dimensions());
    left.enumerate_pixels().find(|&(x, y, pixel)| pixel != right.get_pixel(x, y)).map(|(x, y, _)| (x, y))
}

#[test]
fn pages_equal_the_reference_preprocessing_in_every_byte() {
    let page = golden("page.png");
    for (name, how) in [
        ("stretch_256", Preprocessing::Stretch { side: 256 }),
        ("stretch_640", Preprocessing::Stretch { side: 640 }),
        ("pad_640", Preprocessing::Pad { side: 640, fill: GREY }),
        ("pad_1024", Preprocessing::Pad { side: 1024, fill: GREY }),
    ] {
        let expected = golden(&format!("preprocess/{name}.png"));
        assert_eq!(first_difference(&how.apply(&page).unwrap(), &expected), None, "{name}");
    }
}

/// Noise, where every wrong weight shows: the high bytes of a 32-bit xorshift.
fn noise(width: u32, height: u32) -> RgbImage {
    let mut state = width * 65_537 + height;
    RgbImage::from_fn(width, height, |_, _| {
        ::image::Rgb(std::array::from_fn(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        }))
    })
}

fn digest(image: &RgbImage) -> String {
    let digest = Sha256::digest(image.as_raw());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Width, height, side, and the digests of what Pillow 13.0 makes of the noise: stretched, padded.
const PILLOW: [(u32, u32, u32, &str, &str); 10] = [
    (1, 1, 64, "d371b8017de8eb0f", "d371b8017de8eb0f"),
    (7, 5, 64, "297a5b0dae1f3a10", "1f220ca11086d060"),
    (64, 64, 64, "eb2fe3ceb6058588", "eb2fe3ceb6058588"),
    (63, 64, 32, "6484e68c154b5b2a", "6484e68c154b5b2a"),
    (100, 37, 64, "4baa6619aed039f7", "0c92facd063deb17"),
    (37, 101, 64, "b4e7ce9ea4fcf695", "8ca341c32891b9a1"),
    (301, 150, 64, "c1623656c4af31d9", "2777d2363c8418f8"),
    (640, 481, 96, "e866bd9842b27f66", "d3d45cdbb16ead8d"),
    (33, 32, 63, "511c7a17fc8f7bdb", "43ff1831141242f2"),
    (200, 3, 32, "d6409c3c056b7f55", "nothing left"),
];

#[test]
fn noise_of_many_sizes_equals_pillow() {
    for (width, height, side, stretched, padded) in PILLOW {
        let image = noise(width, height);
        let case = format!("{width} x {height} to {side}");
        assert_eq!(digest(&Preprocessing::Stretch { side }.apply(&image).unwrap()), stretched, "{case}, stretched");
        let pad = Preprocessing::Pad { side, fill: GREY }.apply(&image);
        assert_eq!(pad.map_or_else(|_| "nothing left".to_owned(), |image| digest(&image)), padded, "{case}, padded");
    }
}

/// Width, height, of the noise and of the result, and the digests of what Pillow 13.0 makes of it: stretched, padded.
const PILLOW_OBLONG: [([u32; 2], [u32; 2], &str, &str); 5] = [
    ([100, 37], [56, 84], "73f642737ccb1399", "c558a34c0929a852"),
    ([37, 101], [84, 56], "3cf09d07f1cae994", "1cf20311f0500295"),
    ([64, 48], [84, 63], "d3d51f515c015b22", "d3d51f515c015b22"),
    ([301, 150], [112, 56], "a2100bb323dbea84", "a2100bb323dbea84"),
    ([60, 90], [100, 29], "3a56637a8f012824", "0da24eda9dedc524"),
];

#[test]
fn noise_fitted_to_oblongs_equals_pillow() {
    for (from, to, stretched, padded) in PILLOW_OBLONG {
        let image = noise(from[0], from[1]);
        assert_eq!(digest(&fit(&image, to, Fit::Stretch).unwrap()), stretched, "{from:?} to {to:?}, stretched");
        assert_eq!(digest(&fit(&image, to, Fit::Pad { fill: GREY }).unwrap()), padded, "{from:?} to {to:?}, padded");
    }
}

#[test]
fn sizes_that_cannot_be_handled_are_errors() {
    let page = noise(4, 4);
    for side in [0, MAX_SIDE + 1, u32::MAX] {
        let error = Preprocessing::Stretch { side }.apply(&page).unwrap_err();
        assert!(error.to_string().contains(&side.to_string()), "{error}");
    }
    assert!(Preprocessing::Stretch { side: 8 }.apply(&RgbImage::new(0, 3)).is_err());
}

fn png(image: &DynamicImage) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn decoded(image: impl Into<DynamicImage>) -> Vec<u8> {
    decode("page.png", &png(&image.into())).unwrap().into_raw()
}

#[test]
fn grey_is_repeated_and_transparency_dropped() {
    let grey = ::image::GrayImage::from_raw(2, 1, vec![7, 250]).unwrap();
    assert_eq!(decoded(grey), [7, 7, 7, 250, 250, 250]);
    let grey_alpha = ::image::GrayAlphaImage::from_raw(2, 1, vec![7, 0, 250, 99]).unwrap();
    assert_eq!(decoded(grey_alpha), [7, 7, 7, 250, 250, 250]);
    let rgba = ::image::RgbaImage::from_raw(2, 1, vec![1, 2, 3, 0, 4, 5, 6, 128]).unwrap();
    assert_eq!(decoded(rgba), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn of_sixteen_bits_the_high_byte_counts() {
    let samples = vec![0x01ff, 0x80ff, 0xffff];
    let rgb = ::image::ImageBuffer::<::image::Rgb<u16>, _>::from_raw(1, 1, samples).unwrap();
    assert_eq!(decoded(rgb), [0x01, 0x80, 0xff]);
    let grey = ::image::ImageBuffer::<::image::Luma<u16>, _>::from_raw(1, 1, vec![0x7fff]).unwrap();
    assert_eq!(decoded(grey), [0x7f; 3]);
}

#[test]
fn files_that_are_no_image_are_input_errors_that_name_the_file() {
    let mut damaged = png(&noise(16, 16).into());
    damaged.truncate(damaged.len() / 2);
    for bytes in [&b""[..], b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", &damaged] {
        let error = decode("page.png", bytes).unwrap_err();
        assert!(error.to_string().starts_with("page.png: "), "{error}");
        assert_eq!(error.class(), ErrorClass::Input);
    }
}

#[test]
fn a_small_file_cannot_claim_a_huge_image() {
    let mut bytes = Vec::new();
    let wide = MAX_SIDE + 1;
    PngEncoder::new(&mut bytes).write_image(&vec![0; wide as usize], wide, 1, ExtendedColorType::L8).unwrap();
    assert!(decode("wide.png", &bytes).unwrap_err().to_string().contains("wide.png"));
}

#[test]
fn floats_are_channel_planes_of_normalised_samples() {
    let image = RgbImage::from_raw(2, 1, vec![0, 51, 255, 255, 102, 0]).unwrap();
    let normalisation = Normalisation { mean: [0.5; 3], std: [0.5, 0.5, 0.25] };
    let tensor = normalisation.to_nchw(&image).unwrap();
    assert_eq!(tensor.shape(), [1, 3, 1, 2]);
    let expected = [-1.0, 1.0, (51.0_f32 / 255.0 - 0.5) / 0.5, (102.0_f32 / 255.0 - 0.5) / 0.5, 2.0, -2.0];
    assert_eq!(tensor.data(), &TensorData::Floats(expected.to_vec()));
}
