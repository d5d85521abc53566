//! Two pages that need no file: one with something on it, one without.

use ::image::{Rgb, RgbImage};

/// Portrait, so that squaring the page has something to do.
const WIDTH: u32 = 480;
const HEIGHT: u32 = 640;

const WHITE: Rgb<u8> = Rgb([255; 3]);
const BLACK: Rgb<u8> = Rgb([0; 3]);

/// White paper.
pub(super) fn blank() -> RgbImage {
    RgbImage::from_pixel(WIDTH, HEIGHT, WHITE)
}

/// Black bars of several lengths in the upper half, a chessboard in the lower.
pub(super) fn drawn() -> RgbImage {
    RgbImage::from_fn(WIDTH, HEIGHT, |x, y| if is_bar(x, y) || is_chessboard(x, y) { BLACK } else { WHITE })
}

/// Lines of text, as a wide brush would draw them.
fn is_bar(x: u32, y: u32) -> bool {
    let (line, row) = (y / 40, y % 40);
    let end = 440 - 37 * (line * 5 % 7);
    y < HEIGHT / 2 && row >= 20 && (40..end).contains(&x)
}

fn is_chessboard(x: u32, y: u32) -> bool {
    let inside = (80..400).contains(&x) && (360..600).contains(&y);
    inside && (x / 40 + y / 40).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drawn_page_is_partly_black_and_the_blank_one_is_not() {
        let black = |page: RgbImage| page.pixels().filter(|pixel| **pixel == BLACK).count();
        let area = (WIDTH * HEIGHT) as usize;
        assert!((area / 8..area / 2).contains(&black(drawn())));
        assert_eq!(black(blank()), 0);
    }
}
