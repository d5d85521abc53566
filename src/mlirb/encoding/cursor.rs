//! A bounded reader over bytes of a file that knows where in the file it is.

use crate::{Error, Result};

/// Reads forward through `bytes`, which lie at `base` in the file.
#[derive(Debug, Clone)]
pub(in crate::mlirb) struct Cursor<'a> {
    bytes: &'a [u8],
    base: u64,
}

impl<'a> Cursor<'a> {
    pub(in crate::mlirb) const fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { bytes, base }
    }

    /// Offset in the file of the next byte.
    pub(in crate::mlirb) const fn offset(&self) -> u64 {
        self.base
    }

    pub(in crate::mlirb) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// An error at the next byte.
    #[cold]
    pub(in crate::mlirb) fn error(&self, problem: impl Into<String>) -> Error {
        error_at(self.base, problem)
    }

    pub(in crate::mlirb) fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.bytes.split_first().ok_or_else(|| self.too_short(1))?;
        self.advance(rest, 1);
        Ok(*first)
    }

    pub(in crate::mlirb) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| self.too_short(count))?;
        self.advance(rest, count);
        Ok(taken)
    }

    /// All bytes that are left.
    pub(in crate::mlirb) const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// A cursor over the next `count` bytes, which are skipped.
    pub(in crate::mlirb) fn window(&mut self, count: usize) -> Result<Self> {
        let base = self.base;
        Ok(Self::new(self.take(count)?, base))
    }

    /// Bytes up to the next NUL, which is skipped.
    pub(in crate::mlirb) fn until_nul(&mut self) -> Result<&'a [u8]> {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| self.error("a text does not end"))?;
        let text = self.take(end)?;
        self.byte()?;
        Ok(text)
    }

    pub(in crate::mlirb) fn bool(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(error_at(self.base.saturating_sub(1), "not a boolean").found(other).expected("0 or 1")),
        }
    }

    /// A number of items of at least one byte each, so that it can be trusted for allocation.
    pub(in crate::mlirb) fn count(&mut self) -> Result<usize> {
        let offset = self.base;
        let count = self.unsigned()?;
        usize::try_from(count).ok().filter(|count| *count <= self.bytes.len()).ok_or_else(|| {
            error_at(offset, "a count exceeds what is left of its section")
                .found(count)
                .expected(format!("at most {}", self.bytes.len()))
        })
    }

    /// An index into a table.
    pub(in crate::mlirb) fn index(&mut self) -> Result<usize> {
        let offset = self.base;
        let index = self.unsigned()?;
        usize::try_from(index).map_err(|_| error_at(offset, "an index exceeds the address space").found(index))
    }

    /// Fails unless everything has been read.
    pub(in crate::mlirb) fn finish(&self, what: &str) -> Result<()> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.error(format!("{what} has bytes left over")).found(self.bytes.len()).expected(0))
        }
    }

    fn advance(&mut self, rest: &'a [u8], count: usize) {
        self.bytes = rest;
        self.base = self.base.saturating_add(count as u64);
    }

    #[cold]
    fn too_short(&self, wanted: usize) -> Error {
        self.error("the data ends too early")
            .found(format!("{} bytes left", self.bytes.len()))
            .expected(format!("{wanted} bytes"))
            .hint("the file is truncated or corrupt")
    }
}

/// An input error at a byte of the file.
#[cold]
pub(in crate::mlirb) fn error_at(offset: u64, problem: impl Into<String>) -> Error {
    Error::input(problem).at(format!("byte {offset}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_offset_in_the_file() {
        let mut cursor = Cursor::new(&[7, 0x81, 9], 100);
        cursor.byte().unwrap();
        let error = cursor.clone().count().unwrap_err().to_string();
        assert_eq!(error, "byte 101: a count exceeds what is left of its section: found 64, expected at most 1");
        let error = cursor.take(3).unwrap_err().to_string();
        assert_eq!(error, "byte 101: the data ends too early: found 2 bytes left, expected 3 bytes");
        assert_eq!(
            cursor.finish("the thing").unwrap_err().to_string(),
            "byte 101: the thing has bytes left over: found 2, expected 0"
        );
    }
}
