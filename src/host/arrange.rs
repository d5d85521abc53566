//! From visual tokens and token ids to the embeddings that the decoder is fed.

use std::fmt::Debug;

use half::f16;

use crate::grid::Grid;
use crate::storage::StoredTensor;
use crate::{ElementType, Error, Result};

/// The learned vectors `[hidden]` that structure the visual tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Marks {
    newline: Vec<f32>,
    separator: Vec<f32>,
}

impl Marks {
    /// Two vectors of the same length.
    ///
    /// # Errors
    /// When they are empty or of different lengths.
    pub fn new(newline: Vec<f32>, separator: Vec<f32>) -> Result<Self> {
        if newline.is_empty() || newline.len() != separator.len() {
            return Err(Error::input("the newline and separator vectors do not belong together").found(format!(
                "{} and {} elements",
                newline.len(),
                separator.len()
            )));
        }
        Ok(Self { newline, separator })
    }

    /// Elements of one vector.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.newline.len()
    }

    /// `visual` `[rows * columns, hidden]` with the newline after every row and the separator at the end:
    /// one row per [position](Grid::positions).
    ///
    /// # Errors
    /// When `visual` does not have that many elements.
    pub fn arrange(&self, grid: Grid, visual: &[f32]) -> Result<Vec<f32>> {
        let row = grid.columns() * self.hidden();
        if visual.len() != grid.rows() * row {
            return Err(Error::input("the visual tokens do not fill the grid")
                .found(format!("{} elements", visual.len()))
                .expected(format!("{} x {} x {}", grid.rows(), grid.columns(), self.hidden())));
        }
        let mut features = Vec::with_capacity(grid.positions() * self.hidden());
        for row in visual.chunks_exact(row) {
            features.extend_from_slice(row);
            features.extend_from_slice(&self.newline);
        }
        features.extend_from_slice(&self.separator);
        Ok(features)
    }
}

/// A table of token embeddings `[vocabulary, hidden]`.
pub trait EmbeddingTable: Debug {
    /// Elements of one row.
    fn hidden(&self) -> usize;

    /// Copies the row of token `id` to `out`, which has [`hidden`](Self::hidden) elements.
    ///
    /// # Errors
    /// When there is no such row or it cannot be read.
    fn row(&self, id: u32, out: &mut [f32]) -> Result<()>;
}

/// An embedding table that stays where it is stored; one row is read at a time.
#[derive(Debug, Clone)]
pub struct StoredEmbeddings {
    tensor: StoredTensor,
    rows: usize,
    hidden: usize,
}

impl StoredEmbeddings {
    /// A table over a stored tensor `[vocabulary, hidden]` of half or single precision.
    ///
    /// # Errors
    /// When the tensor has another rank or element type, or is not wholly inside its source.
    pub fn new(tensor: StoredTensor) -> Result<Self> {
        let shape = tensor.shape.as_slice();
        let (&[rows, hidden], ElementType::F16 | ElementType::F32) = (shape, tensor.element) else {
            return Err(Error::input("not an embedding table")
                .at(tensor.source.name().to_owned())
                .found(format!("{} {shape:?}", tensor.element))
                .expected("f16 or f32 [vocabulary, hidden]"));
        };
        check_extent(&tensor)?;
        Ok(Self { rows, hidden, tensor })
    }
}

/// Checks that a tensor lies wholly inside its source.
pub(super) fn check_extent(tensor: &StoredTensor) -> Result<()> {
    let bytes = tensor.shape.iter().try_fold(tensor.element.size() as u64, |n, &extent| n.checked_mul(extent as u64));
    let end = bytes.and_then(|bytes| bytes.checked_add(tensor.offset));
    if end.is_some_and(|end| end <= tensor.source.size()) {
        return Ok(());
    }
    Err(Error::input(format!("the tensor `{}` is longer than the file", tensor.name))
        .at(tensor.source.name().to_owned())
        .found(format!("{} bytes", tensor.source.size()))
        .expected(format!("{} {:?}", tensor.element, tensor.shape)))
}

impl EmbeddingTable for StoredEmbeddings {
    fn hidden(&self) -> usize {
        self.hidden
    }

    fn row(&self, id: u32, out: &mut [f32]) -> Result<()> {
        let row = id as usize;
        if row >= self.rows {
            return Err(Error::input("no such token in the embedding table")
                .at(self.tensor.source.name().to_owned())
                .found(format!("id {id}"))
                .expected(format!("less than {}", self.rows)));
        }
        let row_bytes = self.hidden * self.tensor.element.size();
        let mut bytes = vec![0; row_bytes];
        self.tensor.read_at(&mut bytes, row as u64 * row_bytes as u64)?;
        to_floats(self.tensor.element, &bytes, out);
        Ok(())
    }
}

/// Little-endian half or single precision to floats.
pub(super) fn to_floats(element: ElementType, bytes: &[u8], out: &mut [f32]) {
    if element == ElementType::F16 {
        for (value, &bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *value = f16::from_le_bytes(bytes).to_f32();
        }
    } else {
        for (value, &bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(bytes);
        }
    }
}

/// The embeddings `[prompt length, hidden]` of a prompt whose image positions take the rows of `features`, in order.
///
/// # Errors
/// When there are more or fewer image positions than rows, or a token has no embedding.
pub fn inputs_embeds(
    prompt: &[u32],
    image_token: u32,
    features: &[f32],
    table: &dyn EmbeddingTable,
) -> Result<Vec<f32>> {
    let hidden = table.hidden();
    let positions = prompt.iter().filter(|&&id| id == image_token).count();
    if positions.checked_mul(hidden) != Some(features.len()) || hidden == 0 {
        return Err(Error::input("the visual features do not fill the image positions of the prompt")
            .found(format!("{} elements", features.len()))
            .expected(format!("{positions} x {hidden}")));
    }
    let mut features = features.chunks_exact(hidden);
    let mut embeds = vec![0.0; prompt.len() * hidden];
    for (&id, out) in prompt.iter().zip(embeds.chunks_exact_mut(hidden)) {
        let feature = if id == image_token { features.next() } else { None };
        match feature {
            Some(feature) => out.copy_from_slice(feature),
            None => table.row(id, out)?,
        }
    }
    Ok(embeds)
}

#[cfg(test)]
mod tests;
