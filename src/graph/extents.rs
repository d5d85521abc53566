//! Building with extents that the host chooses at run time: they are read off the shapes of parameters.

use super::types::same_elements;
use super::{Builder, Dim, Op, Symbol, TensorType, ValueId};
use crate::{ElementType, Error};

impl Builder<'_> {
    /// The extents of a value, symbols included.
    #[must_use]
    pub fn dims(&self, value: ValueId) -> Vec<Dim> {
        self.ty(value).shape.clone()
    }

    /// As [`Builder::reshape`], to a shape that may have symbols.
    pub fn reshape_to(&mut self, x: ValueId, shape: &[Dim]) -> ValueId {
        if self.ty(x).shape == shape {
            return x;
        }
        let ty = TensorType { element: self.element(x), shape: shape.to_vec() };
        if let (Some(fixed), Some(_)) = (ty.fixed_shape(), self.ty(x).fixed_shape()) {
            return self.reshape(x, &fixed);
        }
        if !same_elements(&self.ty(x).shape, shape) {
            self.fail(Error::input("a reshape changes the number of elements").found(self.ty(x)).expected(&ty));
        }
        let extents = self.shape_to_reshape_to(shape);
        self.declared(Op::ReshapeAt, &[x, extents], ty)
    }

    /// The operand of [`Op::ReshapeAt`]: one run-time extent follows from the number of elements and needs no reading.
    fn shape_to_reshape_to(&mut self, shape: &[Dim]) -> ValueId {
        if shape.iter().filter(|dim| dim.fixed().is_none()).count() > 1 {
            return self.extents(shape);
        }
        let extents: Vec<i32> = shape.iter().map(|dim| dim.fixed().map_or(-1, |n| n as i32)).collect();
        self.integers(&[extents.len()], &extents)
    }

    /// The extents of a shape as a value, `si32 [rank]`; made once for each shape.
    pub fn extents(&mut self, shape: &[Dim]) -> ValueId {
        if let Some(known) = self.known_extents(shape) {
            return known;
        }
        let runs = shape.chunk_by(|a, b| a.fixed().is_some() && b.fixed().is_some());
        let whole = |run: &[Dim]| run.len() == shape.len();
        let parts: Vec<ValueId> =
            runs.map(|run| if whole(run) { self.run_of_extents(run) } else { self.extents(run) }).collect();
        let value = match parts.as_slice() {
            [] => self.integers(&[0], &[]),
            [one] => *one,
            several => self.concat(several, 0),
        };
        self.remember_extents(shape, value);
        value
    }

    /// One symbol, or numbers alone.
    fn run_of_extents(&mut self, run: &[Dim]) -> ValueId {
        match run {
            [Dim::Symbol(symbol)] => self.read_extent(symbol),
            fixed => {
                let fixed: Vec<i32> = fixed.iter().filter_map(Dim::fixed).map(|n| n as i32).collect();
                self.integers(&[fixed.len()], &fixed)
            }
        }
    }

    /// The extent off the shape of the first parameter that has it.
    fn read_extent(&mut self, symbol: &Symbol) -> ValueId {
        let place = self.function().parameters.iter().find_map(|parameter| {
            let is_it = |dim: &Dim| matches!(dim, Dim::Symbol(s) if s == symbol);
            Some((parameter.value, self.ty(parameter.value).shape.iter().position(is_it)?))
        });
        let Some((parameter, axis)) = place else {
            self.fail(Error::input("no parameter has this extent").found(Dim::Symbol(symbol.clone())));
            return self.integers(&[1], &[0]);
        };
        let of_parameter = self.node(Op::ShapeOf, &[parameter]);
        self.slice_axis(of_parameter, 0, axis, axis + 1)
    }

    /// The integers `begin..end` (each `si32 [1]`), of which there are `n`: `si32 [n]`.
    pub fn range(&mut self, begin: ValueId, end: ValueId, n: &Dim) -> ValueId {
        let (begin, end) = (self.reshape(begin, &[]), self.reshape(end, &[]));
        let ty = TensorType { element: ElementType::I32, shape: vec![n.clone()] };
        self.declared(Op::Range, &[begin, end], ty)
    }

    /// The integers `0..n`, `si32 [n]`: a table where `n` is known.
    pub fn iota(&mut self, n: &Dim) -> ValueId {
        if let Some(n) = n.fixed() {
            let numbers: Vec<i32> = (0..n as i32).collect();
            return self.integers(&[n], &numbers);
        }
        let (zero, end) = (self.integers(&[1], &[0]), self.extents(std::slice::from_ref(n)));
        self.range(zero, end, n)
    }

    /// The integers from `start` (`si32 [1]`) on, `si32 [n]`.
    pub fn counted_from(&mut self, start: ValueId, n: &Dim) -> ValueId {
        if *n == Dim::Fixed(1) {
            return start;
        }
        let offsets = self.iota(n);
        self.add(offsets, start)
    }

    /// The box `begin..end` (`si32 [rank]`) of `x`, which has the extents `shape`.
    pub fn slice_at(&mut self, x: ValueId, [begin, end]: [ValueId; 2], shape: Vec<Dim>) -> ValueId {
        let ty = TensorType { element: self.element(x), shape };
        self.declared(Op::SliceAt, &[x, begin, end], ty)
    }
}
