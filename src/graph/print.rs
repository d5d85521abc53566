//! Graphs as text, for snapshots and messages.

use std::fmt::{self, Write};

use super::{CompositeAttribute, Function, FunctionRole, Module, Node, Op, ParameterKind};
use crate::weights::{Recipe, WeightId, Weights};

impl Module {
    /// The functions as text, one node a line. Small literals are shown, weights by their recipe.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for function in &self.functions {
            let written = function.write_text(&self.weights, &mut out);
            debug_assert!(written.is_ok(), "writing to a string cannot fail");
        }
        out
    }
}

impl Function {
    /// The function as text, one node a line.
    #[must_use]
    pub fn text(&self, weights: &Weights) -> String {
        let mut out = String::new();
        let written = self.write_text(weights, &mut out);
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
        out
    }

    fn write_text(&self, weights: &Weights, out: &mut String) -> fmt::Result {
        match &self.role {
            FunctionRole::Entry => write!(out, "function {}(", self.name)?,
            FunctionRole::Composite(c) => {
                write!(out, "composite {}: {}", self.name, c.operation)?;
                write_attributes(&c.attributes, out)?;
                out.push('(');
            }
        }
        for (i, p) in self.parameters.iter().enumerate() {
            let kind = if p.kind == ParameterKind::State { "state " } else { "" };
            let comma = if i > 0 { ", " } else { "" };
            write!(out, "{comma}%{} {kind}{}: {}", p.value.index(), p.name, self.ty(p.value))?;
        }
        out.push_str(") {\n");
        for (id, node) in self.iter() {
            if node.op != Op::Parameter {
                write!(out, "  %{} = ", id.index())?;
                write_node(node, weights, out)?;
            }
        }
        out.push_str("  return");
        for (i, r) in self.results.iter().chain(&self.states).enumerate() {
            write!(out, "{} {}: %{}", if i > 0 { "," } else { "" }, r.name, r.value.index())?;
        }
        out.push_str("\n}\n");
        Ok(())
    }
}

fn write_attributes(attributes: &[(String, CompositeAttribute)], out: &mut String) -> fmt::Result {
    for (name, value) in attributes {
        match value {
            CompositeAttribute::Integer(v) => write!(out, " {name}={v}")?,
            CompositeAttribute::Integers(v) => write!(out, " {name}={v:?}")?,
            CompositeAttribute::Float(v) => write!(out, " {name}={v:e}")?,
            CompositeAttribute::Bool(v) => write!(out, " {name}={v}")?,
            CompositeAttribute::Text(v) => write!(out, " {name}={v:?}")?,
        }
    }
    Ok(())
}

fn write_node(node: &Node, weights: &Weights, out: &mut String) -> fmt::Result {
    write!(out, "{}", node.op.name())?;
    write_parameters(&node.op, weights, out)?;
    for (i, input) in node.inputs.iter().enumerate() {
        write!(out, "{} %{}", if i > 0 { "," } else { "" }, input.index())?;
    }
    write!(out, " : {}", node.ty)?;
    if let Some(label) = &node.label {
        write!(out, "  # {label}")?;
    }
    out.push('\n');
    Ok(())
}

fn write_parameters(op: &Op, weights: &Weights, out: &mut String) -> fmt::Result {
    match op {
        Op::Constant(id) => write!(out, " {}", weight_text(weights, *id)),
        Op::Cast(element) => write!(out, " to={element}"),
        Op::Reduce { axes, .. } => write!(out, " axes={axes:?}"),
        Op::Softmax { axis } | Op::ArgMax { axis } | Op::Concat { axis } | Op::GatherAlongAxis { axis } => {
            write!(out, " axis={axis}")
        }
        Op::Sort { axis, descending } | Op::ArgSort { axis, descending } => {
            write!(out, " axis={axis} descending={descending}")
        }
        Op::Conv2d { stride, groups } => write!(out, " stride={stride:?} groups={groups}"),
        Op::Conv3d { stride } => write!(out, " stride={stride:?}"),
        Op::Transpose(perm) => write!(out, " perm={perm:?}"),
        Op::Reshape(shape) | Op::BroadcastTo(shape) => write!(out, " shape={shape:?}"),
        Op::Slice { begin, end } => write!(out, " begin={begin:?} end={end:?}"),
        Op::Pad { before, after } => write!(out, " before={before:?} after={after:?}"),
        Op::Invoke(callee) => write!(out, " @{callee}"),
        Op::RmsNorm { epsilon } | Op::LayerNorm { epsilon } => write!(out, " epsilon={epsilon:e}"),
        Op::Resample { kind, to } => write!(out, " {kind:?} to={to:?}"),
        Op::RoutedExperts { experts } => write!(out, " experts={experts}"),
        Op::KvAppend { layer } | Op::CachedAttention { layer, window: None } => write!(out, " layer={layer}"),
        Op::CachedAttention { layer, window: Some(window) } => {
            write!(out, " layer={layer} prefix={} span={}", window.prefix, window.span)
        }
        Op::Attention { causal } => write!(out, " causal={causal}"),
        _ => Ok(()),
    }
}

/// A weight as text: its recipe from the outside in, with tensor names at the leaves.
pub(super) fn weight_text(weights: &Weights, id: WeightId) -> String {
    match weights.recipe(id) {
        Recipe::Read(tensor) => format!("\"{}\"", weights.tensor(*tensor).name),
        Recipe::Literal { element, bytes, .. } if bytes.len() <= 32 => {
            let values: Vec<String> = bytes.chunks_exact(element.size()).map(|e| literal_text(*element, e)).collect();
            format!("<{}>", values.join(" "))
        }
        Recipe::Literal { .. } => "<table>".to_owned(),
        Recipe::Rows { of, begin, end } => format!("rows({begin}..{end}, {})", weight_text(weights, *of)),
        Recipe::Reshape { of, .. } => format!("reshape({})", weight_text(weights, *of)),
        Recipe::Concat(parts) => match parts.as_slice() {
            [first, .., last] if parts.len() > 4 => {
                format!("concat({}, .., {})", weight_text(weights, *first), weight_text(weights, *last))
            }
            parts => {
                let parts: Vec<String> = parts.iter().map(|&part| weight_text(weights, part)).collect();
                format!("concat({})", parts.join(", "))
            }
        },
        Recipe::Pad { of, axis, to } => format!("pad({axis} to {to}, {})", weight_text(weights, *of)),
        Recipe::Cast { of, .. } => format!("cast({})", weight_text(weights, *of)),
        Recipe::Resample { of, .. } => format!("resample({})", weight_text(weights, *of)),
        Recipe::Take { of, .. } => format!("take({})", weight_text(weights, *of)),
        Recipe::Codes { of, coding } => format!("codes({coding}, {})", weight_text(weights, *of)),
        Recipe::Scales { of, coding } => format!("scales({coding}, {})", weight_text(weights, *of)),
        Recipe::View { of, element } => format!("view({element}, {})", weight_text(weights, *of)),
    }
}

fn literal_text(element: crate::ElementType, bytes: &[u8]) -> String {
    use crate::ElementType as E;
    match (element, bytes) {
        (E::F32, &[a, b, c, d]) => format!("{}", f32::from_le_bytes([a, b, c, d])),
        (E::I32, &[a, b, c, d]) => format!("{}", i32::from_le_bytes([a, b, c, d])),
        (E::U32, &[a, b, c, d]) => format!("{}", u32::from_le_bytes([a, b, c, d])),
        (E::F16, &[a, b]) => format!("{}", half::f16::from_le_bytes([a, b])),
        (_, bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
    }
}
