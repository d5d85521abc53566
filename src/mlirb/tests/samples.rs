//! Programs that tests share, and what Apple's serializer makes of them.

use std::sync::Arc;

use super::{read, write};
use crate::ElementType::{F16, F32, I8, I32};
use crate::mlirb::build::{
    Composite, GraphBuilder, Input, NewOperation, ProgramBuilder, RegionBuilder, overwriting_region,
};
use crate::mlirb::{
    Approximation, Attribute, Dim, Operation, Program, ProgramFile, ResourceId, ScalarType, TensorType, Type, ValueId,
};
use crate::storage::FileSource;
use crate::{Error, Result};

/// `y = x + [1, 2]`.
pub(super) fn minimal() -> Program {
    let mut program = ProgramBuilder::new("MLIR22.0.0git");
    let weight = program.resource("w", 4).unwrap();
    let ty = TensorType::new([2], F16);
    let mut graph = GraphBuilder::new("main", vec![Input::tensor("x", ty.clone())]);
    let x = graph.input(0).unwrap();
    let w = graph.body().resource_constant(ty.clone(), weight).unwrap();
    let y = graph.body().value(NewOperation::new("primitive.add_v1").operands([x, w]).result(ty)).unwrap();
    program.add(graph.finish(&[("y", y)]).unwrap());
    program.finish()
}

/// A graph with state that calls a composite, and has constants of every kind.
pub(super) fn sample() -> Program {
    build_sample().unwrap()
}

const NORM: &str = "norm.rms_norm_0";

fn build_sample() -> Result<Program> {
    let mut program = ProgramBuilder::new("aimodel");
    let codes = program.resource("w.codes", 16)?;
    let scales = program.resource("w.scales", 8)?;
    program.add(norm()?);
    program.add(main_graph(codes, scales)?);
    Ok(program.finish())
}

fn rows(element: impl Into<ScalarType>) -> TensorType {
    TensorType::new([Dim::Dynamic, Dim::Fixed(4)], element)
}

fn norm() -> Result<Operation> {
    let composite = Composite {
        name: "rms_norm".into(),
        inputs: vec!["input".into(), "scale".into()],
        outputs: vec!["output".into()],
        attributes: [
            ("axes".into(), Attribute::s64(-1)),
            ("eps".into(), Attribute::Float(1e-6f32.into())),
            ("version".into(), Attribute::s64(1)),
        ]
        .into(),
    };
    let inputs = vec![Input::tensor("input", rows(F16)), Input::tensor("scale", TensorType::new([4], F16))];
    let mut graph = GraphBuilder::new(NORM, inputs).composite(composite);
    let (input, scale) = (graph.input(0)?, graph.input(1)?);
    let body = graph.body();
    let x = body.value(NewOperation::new("primitive.cast_v1").operands([input]).result(rows(F32)))?;
    let squares = body.value(NewOperation::new("broadcasting_mul_v1").operands([x, x]).result(rows(F32)))?;
    let axes = body.constant(TensorType::new([1], I32), &1i32.to_le_bytes())?;
    let column = TensorType::new([Dim::Dynamic, Dim::Fixed(1)], F32);
    let mean = body.value(NewOperation::new("reduce_mean_v1").operands([squares, axes]).result(column.clone()))?;
    let eps = body.constant(TensorType::new([0u64; 0], F32), &1e-6f32.to_le_bytes())?;
    let sum = body.value(NewOperation::new("broadcasting_add_v1").operands([mean, eps]).result(column.clone()))?;
    let factor = body.value(NewOperation::new("primitive.rsqrt_v1").operands([sum]).result(column))?;
    let scaled = body.value(NewOperation::new("broadcasting_mul_v1").operands([x, factor]).result(rows(F32)))?;
    let half = body.value(NewOperation::new("primitive.cast_v1").operands([scaled]).result(rows(F16)))?;
    let output = body.value(NewOperation::new("broadcasting_mul_v1").operands([half, scale]).result(rows(F16)))?;
    graph.finish(&[("output", output)])
}

fn main_graph(codes: ResourceId, scales: ResourceId) -> Result<Operation> {
    let cache_type = TensorType::new([4, 4], F16);
    let inputs = vec![Input::tensor("x", rows(F16)), Input::state("cache", cache_type.clone())];
    let mut graph = GraphBuilder::new("main", inputs);
    let (x, cache) = (graph.input(0)?, graph.input(1)?);
    let body = graph.body();
    let scale = body.constant(TensorType::new([4], F16), &[0, 0x3c, 0, 0x40, 0, 0x3c, 0, 0x38])?;
    let normed = body.invoke(NORM, [x, scale], [rows(F16).into()])?;
    let weight = dequantized(body, codes, scales)?;
    let product = NewOperation::new("broadcasting_batch_matmul_v1").operands(normed).operands([weight]);
    let product = body.value(product.result(rows(F16)))?;
    let gelu = NewOperation::new("primitive.gelu_v1").property(Attribute::Approximation(Approximation::Tanh));
    let active = body.value(gelu.operands([product]).result(rows(F16)))?;
    let last = body.constant(TensorType::new([0u64; 0], I32), &1i32.to_le_bytes())?;
    let y = body.value(NewOperation::new("softmax_v1").operands([active, last]).result(rows(F16)))?;
    let token = overwrite_row(body, cache, cache_type)?;
    graph.finish(&[("cache", token), ("y", y)])
}

/// Codes of 8 bits times one scale for each row.
fn dequantized(body: &mut RegionBuilder, codes: ResourceId, scales: ResourceId) -> Result<ValueId> {
    let column = |element: ScalarType| TensorType::new([4, 1], element);
    let codes = body.resource_constant(TensorType::new([4, 4], I8), codes)?;
    let scales = body.resource_constant(column(F16.into()), scales)?;
    let zero_code = body.constant(column(I8.into()), &[0; 4])?;
    let zero = body.constant(column(F16.into()), &[0; 8])?;
    let operation = NewOperation::new("primitive.blockwise_shift_scale_v2");
    body.value(operation.operands([codes, scales, zero_code, zero]).result(TensorType::new([4, 4], F16)))
}

/// Writes ones to row 2 of the state and gives back its token.
fn overwrite_row(body: &mut RegionBuilder, cache: ValueId, cache_type: TensorType) -> Result<ValueId> {
    let start = body.value(NewOperation::new("dataflow.create_token_v1").result(Type::Token))?;
    let read = NewOperation::new("dataflow.read_handle_v1").operands([cache, start]);
    let read = body.add(read.result(cache_type.clone()).result(Type::Token))?;
    let [old, token] = read.as_slice() else { return Err(Error::input("two results were asked for")) };
    let index = body.constant(TensorType::new([1, 1], I32), &2i32.to_le_bytes())?;
    let ones = body.constant(TensorType::new([1, 4], F16), &[0, 0x3c, 0, 0x3c, 0, 0x3c, 0, 0x3c])?;
    let scatter = NewOperation::new("primitive.scatter_nd_v1").region(overwriting_region(ScalarType::F16));
    let new = body.value(scatter.operands([*old, index, ones]).result(cache_type))?;
    body.value(NewOperation::new("dataflow.write_handle_v1").operands([cache, new, *token]).result(Type::Token))
}

/// A program written by Apple's serializer; `golden/apple/README.md` says how.
pub(super) fn apple(name: &str) -> ProgramFile {
    let path = format!("{}/golden/apple/{name}.aimodel/main.mlirb", env!("CARGO_MANIFEST_DIR"));
    ProgramFile::open(Arc::new(FileSource::open(path).unwrap())).unwrap()
}

#[test]
fn the_minimal_asset_has_the_structure_apple_runs() {
    let file = read(&write(&minimal()).unwrap()).unwrap();
    assert_eq!(file.program(), &minimal());
    insta::assert_snapshot!(file.program(), @r#"
    asset version 20260317 by "MLIR22.0.0git"

    graph @main(%0 "x": tensor<2xf16>) -> ("y": tensor<2xf16>) {
      %1 = primitive.constant_v1() {value = resource #0} : () -> tensor<2xf16>
      %2 = primitive.add_v1(%0, %1) : (tensor<2xf16>, tensor<2xf16>) -> tensor<2xf16>
      dataflow.output_v1(%2) : (tensor<2xf16>) -> ()
    }

    resource #0 "w": 4 bytes, aligned to 16
    "#);
    let tensor = file.tensor(ResourceId::new(0), F16, &[2]).unwrap();
    assert_eq!(tensor.offset % 16, 0);
    let mut bytes = [0; 4];
    tensor.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 4]);
}

#[test]
fn the_sample_is_read_as_it_was_built() {
    let file = read(&write(&sample()).unwrap()).unwrap();
    assert_eq!(file.program(), &sample());
    insta::assert_snapshot!(file.program());
}

#[test]
fn what_apple_makes_of_the_sample_is_the_sample_with_decompositions() {
    let file = apple("sample");
    file.check().unwrap();
    insta::assert_snapshot!(file.program().with_decompositions());
}

#[test]
fn a_program_of_apple_is_written_and_read_without_loss() {
    for name in ["sample", "debug"] {
        let original = apple(name);
        let copy = read(&write(original.program()).unwrap()).unwrap();
        assert_eq!(copy.program(), original.program(), "{name}");
    }
}

#[test]
fn resources_of_apple_are_where_the_reader_says() {
    let file = apple("sample");
    let (resource, offset) = file.resource(ResourceId::new(0)).unwrap();
    let mut bytes = vec![0; resource.bytes as usize];
    file.source().read_exact_at(&mut bytes, offset).unwrap();
    assert_eq!(bytes, [1; 16]);
}

#[test]
fn debug_information_of_apple_is_read() {
    let file = apple("debug");
    let graph = file.program().graphs().next().unwrap();
    let operations = &graph.body().unwrap().operations;
    let locations: Vec<_> = operations.iter().map(|operation| operation.location.to_string()).collect();
    insta::assert_snapshot!(locations.join("\n"), @r#"
    loc "model.py":3:5 at loc "model.py":7:1
    loc "debug.py":26:0
    loc "model.py":3:5 at loc "model.py":7:1
    loc "model.py":3:5 at loc "model.py":7:1
    loc "-":0:0
    loc "debug.py":26:0
    "#);
    let Some(Attribute::Location(location)) = operations.first().map(|operation| &operation.location) else {
        panic!("the first operation has no location")
    };
    let Attribute::Subprogram(forward) = &location.scope else { panic!("its scope is not a subprogram") };
    let Attribute::CompileUnit(unit) = &forward.unit else { panic!("its unit is not a compile unit") };
    assert_eq!((&*forward.name, &*forward.linkage_name), ("forward", "_forward"));
    assert_eq!((&*unit.language, unit.optimized, &*unit.flags), ("DW_LANG_Python", true, "-O2"));
    insta::assert_snapshot!(
        Attribute::array(location.metadata.iter().cloned()),
        @r#"[op_id = {type = "torch", value = 12}, layer.0 = unit, op_id = {type = "coreai", value = 0}]"#
    );
}

#[test]
fn locations_can_be_forgotten() {
    let mut program = apple("debug").program().clone();
    program.forget_locations();
    let copy = read(&write(&program).unwrap()).unwrap();
    assert_eq!(copy.program(), &program);
    assert!(!format!("{program:?}").contains("model.py"));
}
