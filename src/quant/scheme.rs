//! What the command line calls a scheme, and the ways of storing a weight it is made of.

use std::fmt;
use std::str::FromStr;

use super::block::{BLOCK, BlockScheme};
use super::int8::{Int8Clipped, Int8Symmetric};
use super::sym8::Sym8;
use crate::{ElementType, Error};

/// How a bundle's weights are stored, as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Every weight as f16.
    Fp16,
    /// Routed experts as [`BlockCode::Sym8`], the rest f16.
    Sym8,
    /// Every linear but the head as [`BlockCode::Int8Clipped`].
    Int8Lin,
    /// As [`Scheme::Int8Lin`], and the head as [`BlockCode::Int8Symmetric`].
    Int8Hu,
}

/// What a weight is to its model, as far as schemes care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A projection of a routed expert.
    RoutedExpert,
    /// Any other linear layer, shared experts too.
    Linear,
    /// The language-model head, a weight of its own also where the checkpoint ties it to the embedding.
    Head,
    /// Embeddings, norms, biases and routers. No scheme touches them: rounding a router changes which experts run.
    Other,
}

/// One way to store a weight in blocks of codes with a scale each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockCode {
    /// Codes -127 to 127, least squared error against the stored scale.
    Sym8,
    /// Codes -127 to 127 as coreai-opt's `symmetric_with_clipping`.
    Int8Clipped,
    /// Codes -128 to 127 as coreai-opt's `symmetric`.
    Int8Symmetric,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Self; 4] = [Self::Fp16, Self::Sym8, Self::Int8Lin, Self::Int8Hu];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "fp16",
            Self::Sym8 => "sym8",
            Self::Int8Lin => "int8lin",
            Self::Int8Hu => "int8hu",
        }
    }

    /// How this scheme stores a part; `None` leaves it a float.
    #[must_use]
    pub const fn code_for(self, part: Part) -> Option<BlockCode> {
        match (self, part) {
            (Self::Sym8, Part::RoutedExpert) => Some(BlockCode::Sym8),
            (Self::Int8Lin | Self::Int8Hu, Part::RoutedExpert | Part::Linear) => Some(BlockCode::Int8Clipped),
            (Self::Int8Hu, Part::Head) => Some(BlockCode::Int8Symmetric),
            _ => None,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(|scheme| format!("`{scheme}`")).join(", ");
            Error::input("unknown quantisation scheme").found(format!("`{name}`")).expected(format!("one of {known}"))
        })
    }
}

impl BlockCode {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Sym8, Self::Int8Clipped, Self::Int8Symmetric];

    /// The name in reports and graph texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sym8 => "sym8",
            Self::Int8Clipped => "int8-clipped",
            Self::Int8Symmetric => "int8-symmetric",
        }
    }

    /// Weights that share a scale, along the last axis.
    #[must_use]
    pub const fn block(self) -> usize {
        BLOCK
    }

    /// Element type of the codes.
    #[must_use]
    pub const fn codes_element(self) -> ElementType {
        ElementType::I8
    }

    /// Element type of the scales.
    #[must_use]
    pub const fn scale_element(self) -> ElementType {
        ElementType::F16
    }

    /// Scales of a row of `columns` weights; `None` when blocks do not divide it, so that the caller has to decide
    /// (pad, keep as a float, refuse).
    #[must_use]
    pub const fn scales_in_row(self, columns: usize) -> Option<usize> {
        if columns.is_multiple_of(self.block()) { Some(columns / self.block()) } else { None }
    }

    /// The arithmetic.
    #[must_use]
    pub fn scheme(self) -> &'static dyn BlockScheme {
        match self {
            Self::Sym8 => &Sym8,
            Self::Int8Clipped => &Int8Clipped,
            Self::Int8Symmetric => &Int8Symmetric,
        }
    }
}

impl fmt::Display for BlockCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_found_by_its_name_and_an_unknown_name_lists_them() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.name().parse::<Scheme>().unwrap(), scheme);
        }
        assert_eq!(
            "int4".parse::<Scheme>().unwrap_err().to_string(),
            "unknown quantisation scheme: found `int4`, expected one of `fp16`, `sym8`, `int8lin`, `int8hu`"
        );
    }

    #[test]
    fn no_scheme_quantises_routers_and_only_int8hu_touches_the_head() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.code_for(Part::Other), None);
            assert_eq!(scheme.code_for(Part::Head).is_some(), scheme == Scheme::Int8Hu);
        }
        assert_eq!(Scheme::Sym8.code_for(Part::Linear), None);
    }

    #[test]
    fn a_row_that_blocks_do_not_divide_has_no_number_of_scales() {
        for code in BlockCode::ALL {
            assert_eq!(code.scales_in_row(0), Some(0));
            assert_eq!(code.scales_in_row(896), Some(28));
            assert_eq!(code.scales_in_row(48), None);
            assert_eq!(code.scales_in_row(33), None);
        }
    }
}
