//! Norms as composites.

use crate::graph::{
    Builder, Composite, CompositeAttribute, Function, FunctionRole, Op, Reduction, TensorType, Unary, ValueId,
};
use crate::weights::Weights;
use crate::{ElementType, Result};

use super::shape_name;

/// A norm over the last axis of a type.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Norm {
    kind: Kind,
    epsilon: f32,
    ty: TensorType,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    RootMeanSquare,
    Layer,
}

impl Norm {
    pub(super) fn of(op: &Op, ty: &TensorType) -> Option<Self> {
        let (kind, epsilon) = match *op {
            Op::RmsNorm { epsilon } => (Kind::RootMeanSquare, epsilon),
            Op::LayerNorm { epsilon } => (Kind::Layer, epsilon),
            _ => return None,
        };
        Some(Self { kind, epsilon, ty: ty.clone() })
    }

    const fn operation(&self) -> &'static str {
        match self.kind {
            Kind::RootMeanSquare => "rms_norm",
            Kind::Layer => "layer_norm",
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{}_{}_{:e}", self.operation(), shape_name(&self.ty), self.epsilon)
    }

    /// The declaration as coreai-torch writes it: the last axis, epsilon, version 1.
    fn declaration(&self) -> Composite {
        let axes = match self.kind {
            Kind::RootMeanSquare => CompositeAttribute::Integer(-1),
            Kind::Layer => CompositeAttribute::Integers(vec![-1]),
        };
        let attributes = vec![
            ("axes".to_owned(), axes),
            ("eps".to_owned(), CompositeAttribute::Float(self.epsilon)),
            ("version".to_owned(), CompositeAttribute::Integer(1)),
        ];
        Composite { operation: self.operation().to_owned(), attributes }
    }

    pub(super) fn function(&self, weights: &mut Weights) -> Result<Function> {
        let mut b = Builder::new(self.name(), FunctionRole::Composite(self.declaration()), weights);
        let ty = &self.ty;
        let x = b.input("input", ty.clone());
        let last = TensorType { element: ty.element, shape: ty.shape.last().cloned().into_iter().collect() };
        let output = match self.kind {
            Kind::RootMeanSquare => {
                let scale = b.input("scale", last);
                let wide = b.cast(x, ElementType::F32);
                let normed = over_root_mean_square(&mut b, wide, self.epsilon);
                let normed = b.cast(normed, ty.element);
                b.mul(normed, scale)
            }
            Kind::Layer => {
                let (gamma, beta) = (b.input("gamma", last.clone()), b.input("beta", last));
                let wide = b.cast(x, ElementType::F32);
                let mean = b.reduce(Reduction::Mean, wide, ty.rank() - 1);
                let centred = b.sub(wide, mean);
                let normed = over_root_mean_square(&mut b, centred, self.epsilon);
                let normed = b.cast(normed, ty.element);
                let scaled = b.mul(normed, gamma);
                b.add(scaled, beta)
            }
        };
        b.result("output", output);
        b.finish()
    }
}

/// `x` over the root of its mean square plus epsilon, along the last axis.
fn over_root_mean_square(b: &mut Builder<'_>, x: ValueId, epsilon: f32) -> ValueId {
    let axis = b.ty(x).rank() - 1;
    let square = b.mul(x, x);
    let mean = b.reduce(Reduction::Mean, square, axis);
    let epsilon = b.scalar(epsilon, ElementType::F32);
    let shifted = b.add(mean, epsilon);
    let inverse = b.unary(Unary::Rsqrt, shifted);
    b.mul(x, inverse)
}
