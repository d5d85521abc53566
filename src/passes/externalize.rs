use std::collections::BTreeMap;

use super::{Outcome, Pass, rewrite_entries};
use crate::graph::{
    Builder, Composite, CompositeAttribute, Function, FunctionRole, Module, Op, Reduction, TensorType, Unary, ValueId,
};
use crate::weights::Weights;
use crate::{ElementType, Result};

/// `externalize`: norms become private composites that are invoked, one for each type, so that a runtime can put its
/// own kernel in their place. The body is the complete arithmetic, which is what runs elsewhere.
///
/// ```text
/// rms_norm epsilon=1e-6 %x, %gamma
///
/// invoke @rms_norm_1x122x192 %x, %gamma
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Externalize;

impl Pass for Externalize {
    fn name(&self) -> &'static str {
        "externalize"
    }

    fn run(&self, module: &mut Module) -> Result<Outcome> {
        let mut composites: BTreeMap<String, (Norm, TensorType)> = BTreeMap::new();
        let sites = rewrite_entries(module, |rewriter, node| {
            let Some(norm) = Norm::of(&node.op) else {
                return Ok(None);
            };
            let name = norm.function_name(&node.ty);
            let inputs = rewriter.inputs(node);
            composites.insert(name.clone(), (norm, node.ty.clone()));
            Ok(Some(rewriter.builder.declared(Op::Invoke(name), &inputs, node.ty.clone())))
        })?;
        let mut functions = Vec::new();
        for (name, (norm, ty)) in composites {
            functions.push(norm.function(name, &ty, &mut module.weights)?);
        }
        module.functions.splice(0..0, functions);
        Ok(Outcome::of(sites, "there are no norms"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Norm {
    RootMeanSquare { epsilon: f32 },
    Layer { epsilon: f32 },
}

impl Norm {
    fn of(op: &Op) -> Option<Self> {
        match *op {
            Op::RmsNorm { epsilon } => Some(Self::RootMeanSquare { epsilon }),
            Op::LayerNorm { epsilon } => Some(Self::Layer { epsilon }),
            _ => None,
        }
    }

    const fn operation(self) -> &'static str {
        match self {
            Self::RootMeanSquare { .. } => "rms_norm",
            Self::Layer { .. } => "layer_norm",
        }
    }

    const fn epsilon(self) -> f32 {
        match self {
            Self::RootMeanSquare { epsilon } | Self::Layer { epsilon } => epsilon,
        }
    }

    fn function_name(self, ty: &TensorType) -> String {
        let shape: Vec<String> = ty.shape.iter().map(ToString::to_string).collect();
        format!("{}_{}_{:e}", self.operation(), shape.join("x"), self.epsilon())
    }

    /// The declaration as coreai-torch writes it: the last axis, epsilon, version 1.
    fn declaration(self) -> Composite {
        let axes = match self {
            Self::RootMeanSquare { .. } => CompositeAttribute::Integer(-1),
            Self::Layer { .. } => CompositeAttribute::Integers(vec![-1]),
        };
        let attributes = vec![
            ("axes".to_owned(), axes),
            ("eps".to_owned(), CompositeAttribute::Float(self.epsilon())),
            ("version".to_owned(), CompositeAttribute::Integer(1)),
        ];
        Composite { operation: self.operation().to_owned(), attributes }
    }

    fn function(self, name: String, ty: &TensorType, weights: &mut Weights) -> Result<Function> {
        let mut b = Builder::new(name, FunctionRole::Composite(self.declaration()), weights);
        let x = b.input("input", ty.clone());
        let last = TensorType { element: ty.element, shape: ty.shape.last().cloned().into_iter().collect() };
        let output = match self {
            Self::RootMeanSquare { epsilon } => {
                let scale = b.input("scale", last);
                let wide = b.cast(x, ElementType::F32);
                let normed = over_root_mean_square(&mut b, wide, epsilon);
                let normed = b.cast(normed, ty.element);
                b.mul(normed, scale)
            }
            Self::Layer { epsilon } => {
                let (gamma, beta) = (b.input("gamma", last.clone()), b.input("beta", last));
                let wide = b.cast(x, ElementType::F32);
                let mean = b.reduce(Reduction::Mean, wide, ty.rank() - 1);
                let centred = b.sub(wide, mean);
                let normed = over_root_mean_square(&mut b, centred, epsilon);
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
