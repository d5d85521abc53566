//! Inference, verification, rewriting and printing on small graphs.

use super::{
    Binary, Builder, Composite, CompositeAttribute, Dim, Function, FunctionRole, Module, Op, ParameterKind, Reduction,
    Symbol, TensorType, Unary, ValueId, rewrite,
};
use crate::weights::{Resampling, Weights};
use crate::{ElementType, Error, Result};

fn ty(element: ElementType, shape: &[usize]) -> TensorType {
    TensorType::new(element, shape)
}

fn f32s(shape: &[usize]) -> TensorType {
    ty(ElementType::F32, shape)
}

fn i32s(shape: &[usize]) -> TensorType {
    ty(ElementType::I32, shape)
}

/// The type the builder infers for an operation on parameters of these types.
fn inferred(op: Op, inputs: &[TensorType]) -> Result<TensorType> {
    let mut weights = Weights::default();
    let mut builder = Builder::new("main", FunctionRole::Entry, &mut weights);
    let values: Vec<ValueId> =
        inputs.iter().enumerate().map(|(i, ty)| builder.input(&format!("x{i}"), ty.clone())).collect();
    let result = builder.node(op, &values);
    let function = builder.finish()?;
    Ok(function.ty(result).clone())
}

#[test]
fn types_follow_from_inputs() {
    let x = f32s(&[2, 3, 4]);
    let cases: Vec<(Op, Vec<TensorType>, &str)> = vec![
        (Op::Binary(Binary::Add), vec![x.clone(), f32s(&[3, 1])], "f32[2,3,4]"),
        (Op::Binary(Binary::Greater), vec![f32s(&[]), f32s(&[5])], "i1[5]"),
        (Op::Select, vec![ty(ElementType::Bool, &[2, 1]), f32s(&[3]), f32s(&[])], "f32[2,3]"),
        (Op::Cast(ElementType::F16), vec![x.clone()], "f16[2,3,4]"),
        (Op::Reduce { kind: Reduction::Sum, axes: vec![0, 2] }, vec![x.clone()], "f32[1,3,1]"),
        (Op::ArgSort { axis: 1, descending: true }, vec![x.clone()], "si32[2,3,4]"),
        (Op::ArgMax { axis: 2 }, vec![x.clone()], "ui32[2,3,1]"),
        (Op::MatMul, vec![f32s(&[5, 1, 2, 3]), f32s(&[7, 3, 4])], "f32[5,7,2,4]"),
        (Op::Conv2d { stride: [2, 1], groups: 2 }, vec![f32s(&[1, 4, 9, 5]), f32s(&[6, 2, 3, 3])], "f32[1,6,4,3]"),
        (Op::Transpose(vec![2, 0, 1]), vec![x.clone()], "f32[4,2,3]"),
        (Op::Reshape(vec![6, 4]), vec![x.clone()], "f32[6,4]"),
        (Op::BroadcastTo(vec![5, 2, 3, 4]), vec![x.clone()], "f32[5,2,3,4]"),
        (Op::Concat { axis: 1 }, vec![x.clone(), f32s(&[2, 5, 4])], "f32[2,8,4]"),
        (Op::Slice { begin: vec![1, 0, 2], end: vec![2, 3, 2] }, vec![x.clone()], "f32[1,3,0]"),
        (Op::Pad { before: vec![0, 1, 0], after: vec![2, 0, 0] }, vec![x.clone()], "f32[4,4,4]"),
        (Op::Gather, vec![x.clone(), i32s(&[7, 2])], "f32[7,4]"),
        (Op::GatherAlongAxis { axis: 1 }, vec![x.clone(), i32s(&[2, 9, 4])], "f32[2,9,4]"),
        (
            Op::Attention { causal: true },
            vec![f32s(&[1, 6, 5, 8]), f32s(&[1, 2, 9, 8]), f32s(&[1, 2, 9, 8])],
            "f32[1,6,5,8]",
        ),
        (
            Op::CachedAttention { layer: 1, window: None },
            vec![f32s(&[1, 6, 5, 8]), f32s(&[2, 1, 2, 9, 8]), f32s(&[2, 1, 2, 9, 8]), i32s(&[1])],
            "f32[1,6,5,8]",
        ),
        (Op::BlockScale, vec![ty(ElementType::I8, &[2, 64]), ty(ElementType::F16, &[2, 2])], "f16[2,64]"),
        (
            Op::GatherQmm,
            vec![
                ty(ElementType::F16, &[6, 64]),
                ty(ElementType::U32, &[8, 5, 16]),
                ty(ElementType::F16, &[8, 5, 2]),
                i32s(&[6]),
            ],
            "f16[6,5]",
        ),
        (Op::Linear, vec![x.clone(), f32s(&[9, 4]), f32s(&[9])], "f32[2,3,9]"),
        (Op::Resample { kind: Resampling::Bicubic, to: vec![5, 6] }, vec![x], "f32[5,6,4]"),
        (
            Op::StackedExperts,
            vec![ty(ElementType::F16, &[3, 8]), f32s(&[3, 2]), i32s(&[3, 2]), f32s(&[]), f32s(&[]), f32s(&[])],
            "f32[3,8]",
        ),
        (Op::KvAppend { layer: 1 }, vec![f32s(&[2, 1, 4, 16, 8]), f32s(&[1, 4, 3, 8]), i32s(&[1])], "f32[2,1,4,16,8]"),
    ];
    for (op, inputs, expected) in cases {
        let name = op.name();
        assert_eq!(inferred(op, &inputs).map(|ty| ty.to_string()).ok().as_deref(), Some(expected), "{name}");
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let x = f32s(&[2, 3, 4]);
    let half = ty(ElementType::F16, &[2, 3, 4]);
    let cache = f32s(&[2, 1, 4, 16, 8]);
    let cases: Vec<(Op, Vec<TensorType>)> = vec![
        (Op::Binary(Binary::Add), vec![x.clone()]),
        (Op::Binary(Binary::Add), vec![x.clone(), half.clone()]),
        (Op::Binary(Binary::Add), vec![x.clone(), f32s(&[2])]),
        (Op::Binary(Binary::And), vec![x.clone(), x.clone()]),
        (Op::Unary(Unary::Not), vec![x.clone()]),
        (Op::Unary(Unary::Exp), vec![i32s(&[1])]),
        (Op::Select, vec![x.clone(), x.clone(), x.clone()]),
        (Op::Softmax { axis: 3 }, vec![x.clone()]),
        (Op::Sort { axis: 3, descending: false }, vec![x.clone()]),
        (Op::ArgSort { axis: 3, descending: false }, vec![x.clone()]),
        (Op::ArgMax { axis: 3 }, vec![x.clone()]),
        (Op::Reduce { kind: Reduction::Max, axes: vec![3] }, vec![x.clone()]),
        (Op::MatMul, vec![x.clone(), f32s(&[3, 4])]),
        (Op::MatMul, vec![x.clone(), f32s(&[3, 4, 2])]),
        (Op::MatMul, vec![x.clone(), f32s(&[4])]),
        (Op::Conv2d { stride: [0, 1], groups: 1 }, vec![f32s(&[1, 1, 4, 4]), f32s(&[1, 1, 2, 2])]),
        (Op::Conv2d { stride: [1, 1], groups: 1 }, vec![f32s(&[1, 1, 4, 4]), f32s(&[1, 1, 5, 2])]),
        (Op::Transpose(vec![0, 0, 1]), vec![x.clone()]),
        (Op::Reshape(vec![5, 5]), vec![x.clone()]),
        (Op::BroadcastTo(vec![2, 1, 4]), vec![x.clone()]),
        (Op::Concat { axis: 0 }, vec![x.clone(), f32s(&[2, 3, 5])]),
        (Op::Concat { axis: 3 }, vec![x.clone()]),
        (Op::Concat { axis: 0 }, vec![]),
        (Op::Slice { begin: vec![0, 0, 3], end: vec![2, 3, 2] }, vec![x.clone()]),
        (Op::Slice { begin: vec![0, 0, 0], end: vec![2, 3, 5] }, vec![x.clone()]),
        (Op::Slice { begin: vec![0], end: vec![2] }, vec![x.clone()]),
        (Op::SliceUpdate, vec![x.clone(), i32s(&[2]), i32s(&[3]), x.clone()]),
        (Op::SliceUpdate, vec![x.clone(), i32s(&[3]), i32s(&[3]), half.clone()]),
        (Op::Pad { before: vec![1], after: vec![1, 0, 0] }, vec![x.clone()]),
        (Op::Gather, vec![x.clone(), i32s(&[7, 4])]),
        (Op::Gather, vec![x.clone(), f32s(&[7, 1])]),
        (Op::GatherAlongAxis { axis: 1 }, vec![x.clone(), i32s(&[1, 2, 4])]),
        (Op::BlockScale, vec![ty(ElementType::I8, &[2, 64]), ty(ElementType::F16, &[2, 3])]),
        (Op::Linear, vec![x.clone(), f32s(&[4, 9])]),
        (Op::Linear, vec![x.clone(), f32s(&[9, 4]), f32s(&[8])]),
        (Op::RmsNorm { epsilon: 0.0 }, vec![x.clone(), f32s(&[3])]),
        (Op::LayerNorm { epsilon: 0.0 }, vec![x.clone(), f32s(&[4]), ty(ElementType::F16, &[4])]),
        (Op::Resample { kind: Resampling::Linear, to: vec![5, 6] }, vec![x.clone()]),
        (Op::RoutedExperts { experts: 1 }, vec![x; 5]),
        (
            Op::CachedAttention { layer: 2, window: None },
            vec![f32s(&[1, 4, 3, 8]), cache.clone(), cache.clone(), i32s(&[1])],
        ),
        (Op::KvAppend { layer: 0 }, vec![cache.clone(), f32s(&[1, 4, 3, 9]), i32s(&[1])]),
        (Op::KvAppend { layer: 0 }, vec![cache, f32s(&[1, 4, 3, 8]), i32s(&[2])]),
    ];
    for (op, inputs) in cases {
        assert!(inferred(op.clone(), &inputs).is_err(), "{op:?} of {inputs:?}");
    }
}

#[test]
fn the_first_misfit_is_reported_with_its_node() {
    let mut weights = Weights::default();
    let mut b = Builder::new("decode", FunctionRole::Entry, &mut weights);
    let x = b.input("x", f32s(&[2, 3]));
    let wrong = b.matmul(x, x);
    b.transpose(wrong, &[5]);
    let message = b.finish().map(|_| ()).map_err(|e| e.to_string());
    let expected = "function `decode`: node 1 `matmul`: the types of a matrix product do not fit: \
                    found f32[2,3] and f32[2,3], expected [.., m, k] and [.., k, n]";
    assert_eq!(message, Err(expected.to_owned()));
}

#[test]
fn symbols_are_equal_by_name_and_bounds() {
    let symbolic = |name: &str, max| TensorType {
        element: ElementType::F32,
        shape: vec![Dim::Symbol(Symbol::new(name, 1, max)), Dim::Fixed(4)],
    };
    let add = |a, b| inferred(Op::Binary(Binary::Add), &[a, b]).map(|ty| ty.to_string()).ok();
    assert_eq!(add(symbolic("t", 8), symbolic("t", 8)).as_deref(), Some("f32[t:1..8,4]"));
    assert_eq!(add(symbolic("t", 8), f32s(&[1])).as_deref(), Some("f32[t:1..8,4]"));
    assert_eq!(add(symbolic("t", 8), symbolic("t", 9)), None);
    assert_eq!(add(symbolic("t", 8), f32s(&[8, 4])), None);
    assert!(inferred(Op::Reshape(vec![4]), &[symbolic("t", 8)]).is_err());
}

#[test]
fn axes_of_run_time_extent_are_kept_whole_and_joined() {
    let n = Dim::Symbol(Symbol::new("n", 1, 8));
    let x = TensorType { element: ElementType::F32, shape: vec![n.clone(), Dim::Fixed(4)] };
    let slice = |begin: usize, end| Op::Slice { begin: vec![begin, 1], end: vec![end, 3] };
    let pad = |rows| Op::Pad { before: vec![0, 1], after: vec![rows, 1] };
    let text = |op, inputs: &[TensorType]| inferred(op, inputs).map(|ty| ty.to_string()).ok();
    assert_eq!(text(slice(0, Op::TO_END), std::slice::from_ref(&x)).as_deref(), Some("f32[n:1..8,2]"));
    assert_eq!(text(slice(0, 8), std::slice::from_ref(&x)), None);
    assert_eq!(text(slice(1, Op::TO_END), std::slice::from_ref(&x)), None);
    assert_eq!(text(pad(0), std::slice::from_ref(&x)).as_deref(), Some("f32[n:1..8,6]"));
    assert_eq!(text(pad(1), std::slice::from_ref(&x)), None);
    assert_eq!(text(Op::Concat { axis: 0 }, &[x.clone(), x.clone()]).as_deref(), Some("f32[2*n:1..8,4]"));
    assert_eq!(text(Op::Concat { axis: 0 }, &[x.clone(), f32s(&[1, 4])]), None);
    assert_eq!(text(Op::ShapeOf, &[x]).as_deref(), Some("si32[2]"));
    assert_eq!(n.multiple(2).joined(&n), Some(n.multiple(3)));
    let unknown = Dim::Symbol(Symbol::unknown());
    assert_eq!((unknown.joined(&unknown), unknown.multiple(3).to_string()), (Some(unknown.clone()), "?".to_owned()));
}

#[test]
fn a_run_time_shape_is_left_to_the_number_of_elements_or_read_off_the_parameters_once() -> Result<()> {
    let mut module = Module::default();
    let mut b = Builder::new("f", FunctionRole::Entry, &mut module.weights);
    let [n, m] = ["n", "m"].map(|name| Dim::Symbol(Symbol::new(name, 1, 8)));
    let x = b.input("x", TensorType { element: ElementType::F32, shape: vec![n.clone(), m.clone(), Dim::Fixed(4)] });
    let y =
        b.input("y", TensorType { element: ElementType::F32, shape: vec![Dim::Fixed(1), n.clone(), Dim::Fixed(4)] });
    let two = b.reshape_to(x, &[m.clone(), Dim::Fixed(4), n.clone()]);
    let again = b.reshape_to(two, &[m, Dim::Fixed(4), Dim::Fixed(1), n.clone()]);
    let one = b.reshape_to(y, &[n.multiple(2), Dim::Fixed(2)]);
    b.result("two", again);
    b.result("one", one);
    let function = b.finish()?;
    insta::assert_snapshot!(function.text(&module.weights), @"
    function f(%0 x: f32[n:1..8,m:1..8,4], %1 y: f32[1,n:1..8,4]) {
      %2 = shape_of %0 : si32[3]
      %3 = slice begin=[1] end=[2] %2 : si32[1]
      %4 = constant <4> : si32[1]
      %5 = shape_of %0 : si32[3]
      %6 = slice begin=[0] end=[1] %5 : si32[1]
      %7 = concat axis=0 %3, %4, %6 : si32[3]
      %8 = reshape_at %0, %7 : f32[m:1..8,4,n:1..8]
      %9 = constant <4 1> : si32[2]
      %10 = concat axis=0 %3, %9, %6 : si32[4]
      %11 = reshape_at %8, %10 : f32[m:1..8,4,1,n:1..8]
      %12 = constant <-1 2> : si32[2]
      %13 = reshape_at %1, %12 : f32[2*n:1..8,2]
      return two: %11, one: %13
    }
    ");
    Ok(())
}

#[test]
fn a_run_time_shape_has_to_keep_the_elements_and_to_be_a_parameters() {
    let n = Dim::Symbol(Symbol::new("n", 1, 8));
    let message = |shape: &[Dim], to: &[Dim]| {
        let mut weights = Weights::default();
        let mut b = Builder::new("f", FunctionRole::Entry, &mut weights);
        let x = b.input("x", TensorType { element: ElementType::F32, shape: shape.to_vec() });
        b.reshape_to(x, to);
        b.finish().map(|_| ()).map_err(|e| e.to_string())
    };
    let four = Dim::Fixed(4);
    assert_eq!(message(&[n.clone(), four.clone()], &[n.multiple(4)]), Ok(()));
    let expected =
        "function `f`: a reshape changes the number of elements: found f32[n:1..8,4], expected f32[2*n:1..8]";
    assert_eq!(message(&[n.clone(), four.clone()], &[n.multiple(2)]), Err(expected.to_owned()));
    let m = Dim::Symbol(Symbol::new("m", 1, 8));
    assert!(message(&[n.clone(), four.clone()], &[m, four]).is_err());
    let expected = "function `f`: no parameter has this extent: found 2*n:1..8";
    let doubled = [n.clone(), n.clone(), Dim::Fixed(2)];
    assert_eq!(message(&doubled, &[n.multiple(2), n]), Err(expected.to_owned()));
}

/// A module with a state, a label, a composite and its call.
fn sample() -> Result<Module> {
    let mut module = Module::default();
    let attributes = vec![
        ("axes".to_owned(), CompositeAttribute::Integers(vec![-1])),
        ("eps".to_owned(), CompositeAttribute::Float(1e-6)),
    ];
    let role = FunctionRole::Composite(Composite { operation: "double".to_owned(), attributes });
    let mut b = Builder::new("double.0", role, &mut module.weights);
    let x = b.input("x", f32s(&[1, 1, 2, 2]));
    let y = b.scale(x, 2.0);
    b.result("y", y);
    let double = b.finish()?;
    let mut b = Builder::new("main", FunctionRole::Entry, &mut module.weights);
    let x = b.input("x", f32s(&[1, 1, 2, 2]));
    let start = b.input("start", i32s(&[1]));
    let cache = b.state("cache", f32s(&[1, 1, 1, 4, 2]));
    let doubled = b.declared(Op::Invoke("double.0".to_owned()), &[x], f32s(&[1, 1, 2, 2]));
    b.label(doubled, "doubled");
    let written = b.node(Op::KvAppend { layer: 0 }, &[cache, doubled, start]);
    let layer = b.reshape(written, &[1, 1, 4, 2]);
    let total = b.reduce(Reduction::Sum, layer, 2);
    b.result("total", total);
    b.state_result("cache", written);
    module.functions = vec![double, b.finish()?];
    module.verify()?;
    Ok(module)
}

#[test]
fn a_module_as_text() -> Result<()> {
    insta::assert_snapshot!(sample()?.text(), @"
    composite double.0: double axes=[-1] eps=1e-6(%0 x: f32[1,1,2,2]) {
      %1 = constant <2> : f32[]
      %2 = mul %0, %1 : f32[1,1,2,2]
      return y: %2
    }
    function main(%0 x: f32[1,1,2,2], %1 start: si32[1], %2 state cache: f32[1,1,1,4,2]) {
      %3 = invoke @double.0 %0 : f32[1,1,2,2]  # doubled
      %4 = kv_append layer=0 %2, %3, %1 : f32[1,1,1,4,2]
      %5 = reshape shape=[1, 1, 4, 2] %4 : f32[1,1,4,2]
      %6 = reduce_sum axes=[2] %5 : f32[1,1,1,2]
      return total: %6, cache: %4
    }
    ");
    Ok(())
}

#[test]
fn weights_as_text() -> Result<()> {
    let mut weights = Weights::default();
    let table = weights.literal_f32(&[4, 8], &[0.5; 32])?;
    let small = weights.literal_i32(&[2], &[-1, 7])?;
    let rows = weights.rows(table, 1, 3)?;
    let padded = weights.pad(rows, 1, 32)?;
    let joined = weights.concat(vec![padded; 5])?;
    let (codes, _) = weights.quantise(joined, crate::quant::BlockCode::Sym8)?;
    let view = weights.view(codes, ElementType::U32)?;
    assert_eq!(super::print::weight_text(&weights, small), "<-1 7>");
    let chain =
        "view(ui32, codes(sym8, concat(pad(1 to 32, rows(1..3, <table>)), .., pad(1 to 32, rows(1..3, <table>)))))";
    assert_eq!(super::print::weight_text(&weights, view), chain);
    Ok(())
}

#[test]
fn each_violation_is_found() -> Result<()> {
    type Damage = fn(&mut Module);
    let violations: [(Damage, &str); 14] = [
        (|m| m.functions[0].name = "main".to_owned(), "two functions have one name: found `main`"),
        (|m| main(m).parameters[1].name = "x".to_owned(), "two parameters have one name: found `x`"),
        (
            |m| {
                let again = main(m).results[0].clone();
                main(m).results.push(again);
            },
            "two results have one name: found `total`",
        ),
        (|m| main(m).nodes[4].label = Some("doubled".into()), "two labels have one name: found `doubled`"),
        (|m| main(m).nodes[3].inputs = vec![ValueId(3)], "%3 `invoke`: an input is not an earlier value: found %3"),
        (|m| main(m).nodes[5].inputs = vec![ValueId(99)], "%5 `reshape`: an input is not an earlier value: found %99"),
        (|m| main(m).nodes[6].ty = f32s(&[7]), "the result type is wrong: found f32[7], expected f32[1,1,1,2]"),
        (|m| main(m).nodes[5].op = Op::MatMul, "the types of the number of inputs do not fit: found 1, expected 2"),
        (|m| main(m).nodes[3].op = Op::Invoke("gone".to_owned()), "no such callee: found `gone`"),
        (|m| main(m).nodes[3].ty = f32s(&[1, 1, 1, 2]), "a call does not match its callee: found `double.0`"),
        (|m| main(m).states.clear(), "each state needs one result of its name and type, in order"),
        (|m| main(m).states[0].value = ValueId(6), "each state needs one result of its name and type, in order"),
        (|m| main(m).results[0].value = ValueId(99), "a result is not a value: found `total`"),
        (|m| main(m).parameters.swap(0, 1), "the parameters are not the parameter nodes in order"),
    ];
    for (damage, expected) in violations {
        let mut module = sample()?;
        damage(&mut module);
        let found = module.verify().map_err(|e| e.to_string());
        assert!(found.as_ref().is_err_and(|message| message.ends_with(expected)), "{found:?} instead of {expected}");
    }
    Ok(())
}

fn main(module: &mut Module) -> &mut Function {
    &mut module.functions[1]
}

#[test]
fn rewriting_nothing_changes_nothing() -> Result<()> {
    let mut module = sample()?;
    for function in &module.functions.clone() {
        let (same, sites) = rewrite(function, &mut module.weights, |_, _| Ok(None))?;
        assert_eq!((&same, sites), (function, 0));
    }
    Ok(())
}

#[test]
fn replacements_keep_labels_results_and_users() -> Result<()> {
    let mut module = sample()?;
    let old = module.functions[1].clone();
    let (new, sites) = rewrite(&old, &mut module.weights, |rewriter, node| {
        let Op::Invoke(_) = node.op else { return Ok(None) };
        let x = rewriter.inputs(node)[0];
        Ok(Some(rewriter.builder.add(x, x)))
    })?;
    assert_eq!(sites, 1);
    let doubled = new.labelled("doubled").map(|value| new.node(value));
    assert_eq!(doubled.map(|node| &node.op), Some(&Op::Binary(Binary::Add)));
    assert_eq!(new.results[0].name, "total");
    assert_eq!(new.node(new.states[0].value).op, Op::KvAppend { layer: 0 });
    module.functions[1] = new;
    module.verify()
}

#[test]
fn one_node_may_become_several_or_an_earlier_one() -> Result<()> {
    let mut module = sample()?;
    let old = module.functions[1].clone();
    let (longer, _) = rewrite(&old, &mut module.weights, |rewriter, node| {
        let Op::Reduce { .. } = node.op else { return Ok(None) };
        let x = rewriter.inputs(node)[0];
        let half = rewriter.builder.scale(x, 0.5);
        let sum = rewriter.builder.reduce(Reduction::Sum, half, 2);
        Ok(Some(rewriter.builder.scale(sum, 2.0)))
    })?;
    assert!(longer.nodes.len() > old.nodes.len());
    let (shorter, _) = rewrite(&old, &mut module.weights, |rewriter, node| {
        Ok(matches!(node.op, Op::Invoke(_)).then(|| rewriter.inputs(node)[0]))
    })?;
    assert_eq!(shorter.nodes.len(), old.nodes.len() - 1);
    assert_eq!(shorter.labelled("doubled"), Some(shorter.parameter("x")?.value));
    for function in [longer, shorter] {
        module.functions[1] = function;
        module.verify()?;
    }
    Ok(())
}

#[test]
fn errors_of_rules_and_of_new_nodes_end_a_rewrite() -> Result<()> {
    let mut module = sample()?;
    let old = module.functions[1].clone();
    let failed = rewrite(&old, &mut module.weights, |_, _| Err(Error::input("no")));
    assert!(failed.is_err_and(|e| e.to_string() == "no"));
    let misfit = rewrite(&old, &mut module.weights, |rewriter, node| {
        let Op::Reshape(_) = node.op else { return Ok(None) };
        let cache = rewriter.inputs(node)[0];
        Ok(Some(rewriter.builder.transpose(cache, &[0])))
    });
    assert!(misfit.is_err_and(|e| e.to_string().contains("`transpose`")));
    Ok(())
}

#[test]
fn a_constant_is_one_node() -> Result<()> {
    let mut weights = Weights::default();
    let mut b = Builder::new("main", FunctionRole::Entry, &mut weights);
    let (one, two) = (b.scalar(1.0, ElementType::F32), b.scalar(2.0, ElementType::F32));
    assert_eq!(b.scalar(1.0, ElementType::F32), one);
    assert_ne!(b.scalar(1.0, ElementType::F16), one);
    assert_ne!(one, two);
    Ok(())
}

#[test]
fn unknown_parameters_are_listed() -> Result<()> {
    let module = sample()?;
    let error = module.functions[1].parameter("y").map(|_| ()).map_err(|e| e.to_string());
    let expected = "function `main`: no such parameter: found `y`, expected `x`, `start`, `cache`";
    assert_eq!(error, Err(expected.to_owned()));
    let states: Vec<_> = module.functions[1].parameters_of(ParameterKind::State).map(|p| p.name.as_str()).collect();
    assert_eq!(states, ["cache"]);
    let entries: Vec<_> = module.entries().map(|f| f.name.as_str()).collect();
    assert_eq!(entries, ["main"]);
    Ok(())
}
