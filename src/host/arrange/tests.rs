use std::sync::Arc;

use super::*;
use crate::storage::MemorySource;

/// A table whose row `id` is `[id, id + 0.5]`.
fn table(element: ElementType) -> StoredEmbeddings {
    let values = (0..8).flat_map(|id| [id as f32, id as f32 + 0.5]);
    let bytes: Vec<u8> = match element {
        ElementType::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    };
    StoredEmbeddings::new(stored(bytes, element, vec![8, 2])).unwrap()
}

fn stored(bytes: Vec<u8>, element: ElementType, shape: Vec<usize>) -> StoredTensor {
    let source = Arc::new(MemorySource::new("embed_tokens.bin", bytes));
    StoredTensor { name: Arc::from("embed_tokens"), source, offset: 0, element, shape }
}

#[test]
fn every_row_ends_with_the_newline_and_all_with_the_separator() {
    let marks = Marks::new(vec![-1.0, -2.0], vec![-3.0, -4.0]).unwrap();
    let visual: Vec<f32> = (0..8).map(|x| x as f32).collect();
    let features = marks.arrange(Grid::new(2, 2).unwrap(), &visual).unwrap();
    let expected = [0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 4.0, 5.0, 6.0, 7.0, -1.0, -2.0, -3.0, -4.0];
    assert_eq!(features, expected);
}

#[test]
fn the_grids_of_the_two_views_take_the_known_number_of_positions() {
    assert_eq!(Grid::new(10, 10).unwrap().positions(), 111);
    assert_eq!(Grid::new(16, 16).unwrap().positions(), 273);
}

#[test]
fn visual_tokens_that_do_not_fill_the_grid_are_an_error() {
    let marks = Marks::new(vec![0.0; 2], vec![0.0; 2]).unwrap();
    let error = marks.arrange(Grid::new(2, 2).unwrap(), &[0.0; 6]).unwrap_err();
    assert!(error.to_string().contains("found 6 elements, expected 2 x 2 x 2"), "{error}");
}

#[test]
fn grids_and_marks_without_sense_are_errors() {
    for (rows, columns) in [(0, 4), (4, 0), (usize::MAX, 2)] {
        assert!(Grid::new(rows, columns).is_err());
    }
    assert!(Marks::new(vec![], vec![]).is_err());
    assert!(Marks::new(vec![1.0], vec![1.0, 2.0]).is_err());
}

#[test]
fn one_row_is_read_in_either_precision() {
    for element in [ElementType::F16, ElementType::F32] {
        let mut row = [0.0; 2];
        table(element).row(5, &mut row).unwrap();
        assert_eq!(row, [5.0, 5.5]);
    }
}

#[test]
fn a_token_without_embedding_is_an_error_that_names_file_and_id() {
    let error = table(ElementType::F16).row(8, &mut [0.0; 2]).unwrap_err().to_string();
    assert!(error.starts_with("embed_tokens.bin: ") && error.contains("id 8"), "{error}");
}

#[test]
fn tables_that_cannot_be_read_are_refused_at_once() {
    let error = StoredEmbeddings::new(stored(vec![0; 7], ElementType::F16, vec![2, 2])).unwrap_err().to_string();
    assert!(error.contains("longer than the file") && error.contains("7 bytes"), "{error}");
    let overflow = vec![usize::MAX, usize::MAX];
    assert!(StoredEmbeddings::new(stored(vec![0; 8], ElementType::F16, overflow)).is_err());
    assert!(StoredEmbeddings::new(stored(vec![0; 8], ElementType::I32, vec![1, 2])).is_err());
    assert!(StoredEmbeddings::new(stored(vec![0; 8], ElementType::F32, vec![2])).is_err());
}

#[test]
fn image_positions_take_the_features_in_order() {
    let features = [10.0, 11.0, 20.0, 21.0];
    let embeds = inputs_embeds(&[0, 7, 3, 7], 7, &features, &table(ElementType::F32)).unwrap();
    assert_eq!(embeds, [0.0, 0.5, 10.0, 11.0, 3.0, 3.5, 20.0, 21.0]);
}

#[test]
fn too_few_or_too_many_features_are_an_error() {
    for features in [&[1.0, 2.0][..], &[0.0; 6]] {
        let error = inputs_embeds(&[0, 7, 7], 7, features, &table(ElementType::F32)).unwrap_err();
        assert!(error.to_string().contains("expected 2 x 2"), "{error}");
    }
}
