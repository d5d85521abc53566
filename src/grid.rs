//! The grid of visual tokens, which the vision tower gives and the host lays out.

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
