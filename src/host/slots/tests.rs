use super::*;

fn slots(rows: usize, columns: usize) -> Slots {
    Slots { placeholder: 7, vocabulary: 100, grid: Grid::new(rows, columns).unwrap() }
}

#[test]
fn visual_tokens_take_the_place_of_the_placeholder() {
    let prompt = slots(2, 3).fill(&[1, 2, 7, 3]).unwrap();
    assert_eq!(prompt.ids, [1, 2, 100, 101, 102, 103, 104, 105, 3]);
    assert_eq!(prompt.shift, RopeShift { start: 8, amount: 3 });
}

#[test]
fn the_shift_of_a_page_is_that_of_the_published_host() {
    let prompt = slots(22, 31).fill(&[1, 2, 3, 4, 5, 7]).unwrap();
    assert_eq!(prompt.shift, RopeShift { start: 687, amount: 651 });
}

#[test]
fn prompts_without_exactly_one_image_are_refused() {
    for (ids, found) in [(&[1, 2][..], "0 placeholders"), (&[7, 1, 7], "2 placeholders"), (&[], "0 placeholders")] {
        let error = slots(1, 1).fill(ids).unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
    }
}

#[test]
fn ids_that_could_be_taken_for_visual_tokens_are_refused() {
    assert!(slots(1, 1).fill(&[7, 100]).unwrap_err().to_string().contains("found 100"));
    let edge = Slots { vocabulary: u32::MAX, ..slots(1, 2) };
    assert!(edge.fill(&[7]).unwrap_err().to_string().contains("too long"));
}
