//! Whole functions: signatures, states, probes, calls, rounding, folding.

use super::{assert_close, f32s, i32s, module};
use crate::eval::{Executor, Options, Rounding, Tensor, Tensors, evaluate_constants, folds};
use crate::graph::{Binary, Builder, Composite, Dim, FunctionRole, Module, Op, Reduction, Symbol, TensorType, Unary};
use crate::weights::Weights;
use crate::{ElementType, Result};

fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

fn f32_type(shape: &[usize]) -> TensorType {
    TensorType::new(ElementType::F32, shape)
}

fn symbolic(names: [&str; 2]) -> TensorType {
    let dim = |name: &str| Dim::Symbol(Symbol::new(name, 1, 4));
    TensorType { element: ElementType::F32, shape: names.map(dim).to_vec() }
}

/// `y = x + x`.
fn doubling(ty: TensorType) -> Result<Module> {
    module(|b| {
        let x = b.input("x", ty);
        let y = b.add(x, x);
        b.result("y", y);
    })
}

#[test]
fn a_value_used_twice_by_one_node_is_kept_for_both() -> Result<()> {
    let module = doubling(f32_type(&[2]))?;
    assert_close(&super::run(&module, named([("x", f32s(&[2], &[1.0, 2.0]).1)]))?, &[2], &[2.0, 4.0], 0.0);
    Ok(())
}

#[test]
fn arguments_are_not_changed_in_place() -> Result<()> {
    let module = doubling(f32_type(&[2]))?;
    let x = f32s(&[2], &[1.0, 2.0]).1;
    super::run(&module, named([("x", x.clone())]))?;
    assert_close(&x, &[2], &[1.0, 2.0], 0.0);
    Ok(())
}

#[test]
fn misfit_arguments_are_named() -> Result<()> {
    let module = doubling(f32_type(&[2]))?;
    let message = |inputs| super::run(&module, inputs).map_err(|e| e.to_string()).expect_err("a misfit");
    let x = f32s(&[2], &[1.0, 2.0]).1;
    assert_eq!(message(named([])), "function `main`: input `x`: no such input was given");
    assert_eq!(
        message(named([("x", f32s(&[3], &[0.0; 3]).1)])),
        "function `main`: input `x`: an argument does not fit: found floating-point numbers [3], expected f32[2]"
    );
    assert_eq!(
        message(named([("x", i32s(&[2], &[0; 2]).1)])),
        "function `main`: input `x`: an argument does not fit: found integers [2], expected f32[2]"
    );
    assert_eq!(
        message(named([("x", x.clone()), ("z", x)])),
        "function `main`: an unknown input was given: found `z`, expected `x`"
    );
    let executor = Executor::new(&module, Options::default());
    let unknown = executor.run("other", named([]), &mut named([])).map_err(|e| e.to_string());
    assert_eq!(unknown, Err("no such function: found `other`, expected `main`".to_owned()));
    Ok(())
}

#[test]
fn symbols_bind_at_run_time_within_their_bounds() -> Result<()> {
    let module = doubling(symbolic(["n", "n"]))?;
    let run = |shape: [usize; 2]| super::run(&module, named([("x", f32s(&shape, &vec![1.0; shape[0] * shape[1]]).1)]));
    assert_eq!(run([3, 3])?.shape(), [3, 3]);
    assert_eq!(
        run([2, 3]).map_err(|e| e.hint_text().map(str::to_owned)),
        Err(Some("another argument has `n` = 2".to_owned()))
    );
    assert_eq!(run([5, 5]).map_err(|e| e.hint_text().map(str::to_owned)), Err(Some("`n` is out of bounds".to_owned())));
    Ok(())
}

/// Appends one column to a cache of 4 positions and returns the sum of the cache.
fn appending() -> Result<Module> {
    module(|b| {
        let column = b.input("column", f32_type(&[1, 1, 1, 1]));
        let start = b.input("start", TensorType::new(ElementType::I32, &[1]));
        let cache = b.state("cache", f32_type(&[1, 1, 1, 4, 1]));
        let new = b.node(Op::KvAppend { layer: 0 }, &[cache, column, start]);
        let layer = b.reshape(new, &[1, 1, 4, 1]);
        let total = b.node(Op::Reduce { kind: Reduction::Sum, axes: vec![2] }, &[layer]);
        b.result("y", total);
        b.state_result("cache", new);
    })
}

#[test]
fn states_carry_over_and_are_written_in_place() -> Result<()> {
    let module = appending()?;
    let executor = Executor::new(&module, Options::default());
    let mut states = executor.zero_states("main")?;
    let buffer = |states: &Tensors| match &states["cache"] {
        Tensor::F32(cache) => cache.as_ptr(),
        _ => unreachable!(),
    };
    let before = buffer(&states);
    for step in 0..3 {
        let column = f32s(&[1, 1, 1, 1], &[10.0f32.powi(step)]).1;
        executor.run("main", named([("column", column), ("start", i32s(&[1], &[step]).1)]), &mut states)?;
    }
    assert_close(&states["cache"], &[1, 1, 1, 4, 1], &[1.0, 10.0, 100.0, 0.0], 0.0);
    assert_eq!(buffer(&states), before, "the cache was copied");
    Ok(())
}

#[test]
fn a_state_held_elsewhere_is_not_changed() -> Result<()> {
    let module = appending()?;
    let executor = Executor::new(&module, Options::default());
    let mut states = executor.zero_states("main")?;
    let kept = states["cache"].clone();
    let inputs = named([("column", f32s(&[1, 1, 1, 1], &[7.0]).1), ("start", i32s(&[1], &[0]).1)]);
    executor.run("main", inputs, &mut states)?;
    assert_close(&kept, &[1, 1, 1, 4, 1], &[0.0; 4], 0.0);
    Ok(())
}

#[test]
fn errors_say_where() -> Result<()> {
    let module = appending()?;
    let executor = Executor::new(&module, Options::default());
    let mut states = executor.zero_states("main")?;
    let inputs = named([("column", f32s(&[1, 1, 1, 1], &[7.0]).1), ("start", i32s(&[1], &[4]).1)]);
    let error = executor.run("main", inputs, &mut states).map_err(|e| e.to_string());
    let expected = "function `main`: %3 `kv_append`: columns do not fit the cache: \
                    found 1 from position 4 on in layer 0, expected 4 positions, 1 layers";
    assert_eq!(error, Err(expected.to_owned()));
    Ok(())
}

#[test]
fn probes_are_values_as_they_were() -> Result<()> {
    let module = module(|b| {
        let x = b.input("x", f32_type(&[2]));
        b.label(x, "in");
        let two = b.scale(x, 2.0);
        b.label(two, "twice");
        let e = b.unary(Unary::Sqrt, two);
        b.result("y", e);
        let unused = b.scale(x, 3.0);
        b.label(unused, "unused");
    })?;
    let executor = Executor::new(&module, Options::default());
    let inputs = named([("x", f32s(&[2], &[2.0, 8.0]).1)]);
    let outputs = executor.run_with_probes("main", inputs.clone(), &mut Tensors::new(), &["twice", "in", "unused"])?;
    assert_close(&outputs.results["y"], &[2], &[2.0, 4.0], 0.0);
    assert_close(&outputs.probes["twice"], &[2], &[4.0, 16.0], 0.0);
    assert_close(&outputs.probes["in"], &[2], &[2.0, 8.0], 0.0);
    assert_close(&outputs.probes["unused"], &[2], &[6.0, 24.0], 0.0);
    let unknown = executor.run_with_probes("main", inputs, &mut Tensors::new(), &["none"]).map_err(|e| e.to_string());
    let expected = "function `main`: no such label: found `none`, expected `in`, `twice`, `unused`";
    assert_eq!(unknown.err().as_deref(), Some(expected));
    Ok(())
}

#[test]
fn composites_are_called_by_name() -> Result<()> {
    let mut module = module(|b| {
        let x = b.input("x", f32_type(&[2]));
        let y = b.declared(Op::Unary(Unary::Exp), &[x], f32_type(&[2]));
        b.result("y", y);
    })?;
    let composite = Composite { operation: "square".to_owned(), attributes: Vec::new() };
    let mut b = Builder::new("square", FunctionRole::Composite(composite), &mut module.weights);
    let x = b.input("x", f32_type(&[2]));
    let y = b.mul(x, x);
    b.result("y", y);
    let square = b.finish()?;
    module.functions.push(square);
    module.functions[0].nodes[1].op = Op::Invoke("square".to_owned());
    module.verify()?;
    let y = super::run(&module, named([("x", f32s(&[2], &[3.0, -4.0]).1)]))?;
    assert_close(&y, &[2], &[9.0, 16.0], 0.0);
    // A composite that calls itself ends in an error, not in a full stack.
    module.functions[1].nodes[1].op = Op::Invoke("square".to_owned());
    module.functions[1].nodes[1].inputs.truncate(1);
    let endless = super::run(&module, named([("x", f32s(&[2], &[3.0, -4.0]).1)]));
    assert!(endless.is_err_and(|e| e.to_string().contains("too deeply")));
    Ok(())
}

#[test]
fn values_are_rounded_to_their_type_if_asked() -> Result<()> {
    let module = module(|b| {
        let x = b.input("x", TensorType::new(ElementType::F16, &[2]));
        let y = b.add(x, x);
        let third = b.scale(y, 1.0 / 3.0);
        b.result("y", third);
    })?;
    let run = |rounding| {
        let executor = Executor::new(&module, Options { rounding, ..Options::default() });
        let inputs = named([("x", f32s(&[2], &[1.5, 40000.0]).1)]);
        executor.run("main", inputs, &mut Tensors::new()).map(|results| results["y"].clone())
    };
    let third = half::f16::from_f32(1.0 / 3.0).to_f32();
    assert_close(&run(Rounding::None)?, &[2], &[3.0 * third, 80000.0 * third], 0.0);
    let rounded = half::f16::from_f32(3.0 * third).to_f32();
    assert_close(&run(Rounding::AsStored)?, &[2], &[rounded, f32::INFINITY], 0.0);
    Ok(())
}

#[test]
fn results_do_not_depend_on_the_cache() -> Result<()> {
    let module = module(|b| {
        let x = b.input("x", f32_type(&[1, 2]));
        let w = b.floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let y = b.linear(x, w, None);
        let rows = b.integers(&[2], &[1, 0]);
        let taken = b.take_rows(w, rows);
        let y = b.add(y, taken);
        b.result("y", y);
    })?;
    for cache_bytes in [0, 8, 1 << 20] {
        let executor = Executor::new(&module, Options { cache_bytes, ..Options::default() });
        let inputs = named([("x", f32s(&[1, 2], &[1.0, 1.0]).1)]);
        let results = executor.run("main", inputs, &mut Tensors::new())?;
        assert_close(&results["y"], &[2, 2], &[6.0, 11.0, 4.0, 9.0], 0.0);
    }
    Ok(())
}

#[test]
fn constants_fold() -> Result<()> {
    let mut weights = Weights::default();
    let mut b = Builder::new("main", FunctionRole::Entry, &mut weights);
    let x = b.input("x", f32_type(&[2]));
    let table = b.floats(&[2], &[0.0, 1.0]);
    let sine = b.unary(Unary::Sin, table);
    let half = b.cast(sine, ElementType::F16);
    let single = b.cast(half, ElementType::F32);
    let with_input = b.binary(Binary::Add, single, x);
    let function = b.finish()?;
    let folded = evaluate_constants(&function, &weights, single)?;
    assert_close(&folded, &[2], &[0.0, half::f16::from_f32(0.841_470_96).to_f32()], 0.0);
    assert!(evaluate_constants(&function, &weights, with_input).is_err());
    assert!(folds(&Op::Unary(Unary::Sin)) && !folds(&Op::MatMul) && !folds(&Op::Parameter));
    Ok(())
}

#[test]
fn literal_bytes_come_back() -> Result<()> {
    use ElementType as E;
    for element in [E::F16, E::BF16, E::F32, E::F64] {
        let x = Tensor::floats(&[3], vec![-1.5, 0.0, 96.0])?;
        assert_eq!(Tensor::from_literal_bytes(element, &[3], &x.to_literal_bytes(element)?)?, x);
    }
    for element in [E::I16, E::I32, E::I64, E::U8, E::U16, E::U32, E::U64] {
        let x = Tensor::integers(&[2], vec![0, 200])?;
        assert_eq!(Tensor::from_literal_bytes(element, &[2], &x.to_literal_bytes(element)?)?, x);
    }
    let too_large = Tensor::integers(&[1], vec![70000])?.to_literal_bytes(E::U16);
    assert!(too_large.is_err_and(|e| e.to_string().contains("does not fit its type: found 70000, expected ui16")));
    let negative = Tensor::integers(&[1], vec![-1])?;
    assert!(negative.to_literal_bytes(E::U64).is_err());
    assert_eq!(negative.to_literal_bytes(E::U32)?, [0xff; 4]);
    let wide = Tensor::from_literal_bytes(E::I64, &[1], &(1i64 << 40).to_le_bytes());
    assert!(wide.is_err_and(|e| e.to_string().contains("out of range")));
    assert!(Tensor::from_literal_bytes(E::F32, &[2], &[0; 4]).is_err());
    Ok(())
}
