//! The grid of visual tokens, which the vision tower gives and the host lays out.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The grid of visual tokens of one page view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    rows: usize,
    columns: usize,
}

impl Grid {
    /// Most rows, and most columns.
    pub const MAX_SIDE: usize = 1 << 12;

    /// A grid of `rows` x `columns` visual tokens.
    ///
    /// # Errors
    /// When a side is zero or larger than [`MAX_SIDE`](Self::MAX_SIDE).
    pub fn new(rows: usize, columns: usize) -> Result<Self> {
        let sides = 1..=Self::MAX_SIDE;
        if sides.contains(&rows) && sides.contains(&columns) {
            return Ok(Self { rows, columns });
        }
        Err(Error::input("not a grid of visual tokens")
            .found(format!("{rows} x {columns}"))
            .expected(format!("1 to {} a side", Self::MAX_SIDE)))
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(self) -> usize {
        self.rows
    }

    /// Visual tokens in a row.
    #[must_use]
    pub const fn columns(self) -> usize {
        self.columns
    }

    /// Visual tokens as the vision encoder gives them: rows x columns.
    #[must_use]
    pub const fn tokens(self) -> usize {
        self.rows * self.columns
    }

    /// Row and column of every visual token, in order.
    pub fn cells(self) -> impl Iterator<Item = [usize; 2]> {
        (0..self.tokens()).map(move |token| [token / self.columns, token % self.columns])
    }

    /// Positions they take in a prompt with a vector after each row and one at the end: rows x (columns + 1) + 1.
    #[must_use]
    pub const fn positions(self) -> usize {
        self.rows * (self.columns + 1) + 1
    }
}

/// Rows and columns: `22x31`.
impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.columns)
    }
}

/// As it is displayed.
impl FromStr for Grid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let sides = text.split_once('x').and_then(|(rows, columns)| Some((rows.parse().ok()?, columns.parse().ok()?)));
        let (rows, columns) = sides.ok_or_else(|| {
            let error = Error::input("not a grid of visual tokens").found(format!("`{text}`"));
            error.expected("rows x columns, such as `22x31`")
        })?;
        Self::new(rows, columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_reads_as_it_is_written() {
        let grid: Grid = "22x31".parse().unwrap();
        assert_eq!((grid.rows(), grid.columns(), grid.tokens(), grid.to_string().as_str()), (22, 31, 682, "22x31"));
        for text in ["", "22", "22x", "x31", "22x31x2", "22 x 31", "22X31", "-1x2", "0x4", "4097x1"] {
            let error = text.parse::<Grid>().unwrap_err().to_string();
            assert!(error.starts_with("not a grid of visual tokens"), "{text}: {error}");
        }
    }
}
