//! The writer's promises: exact sizes, equal bytes, refusals.

use super::samples::{minimal, sample};
use super::{read, write};
use crate::ElementType::{F16, I32};
use crate::mlirb::build::{GraphBuilder, Input, NewOperation, ProgramBuilder, RegionBuilder};
use crate::mlirb::{
    Attribute, DenseElements, Operation, Program, Properties, Resource, ResourceId, ScalarType, TensorType, Type,
    ValueId, Writer, check, layout,
};

/// The error of `program` when its first operation called `name` is changed.
fn broken(mut program: Program, name: &str, change: impl FnOnce(&mut Operation)) -> String {
    let graphs = &mut program.asset.regions[0].block.as_mut().unwrap().operations;
    let mut operations = graphs.iter_mut().flat_map(|graph| &mut graph.regions[0].block.as_mut().unwrap().operations);
    change(operations.find(|operation| &*operation.name == name).unwrap());
    let error = check(&program).unwrap_err().to_string();
    assert_eq!(layout(&program).unwrap_err().to_string(), error, "what does not pass the check is not written");
    error
}

#[test]
fn sizes_and_offsets_are_known_beforehand() {
    for program in [minimal(), sample()] {
        let bytes = write(&program).unwrap();
        let layout = layout(&program).unwrap();
        assert_eq!(layout.total_bytes, bytes.len() as u64);
        let file = read(&bytes).unwrap();
        for (index, offset) in layout.resource_offsets.iter().enumerate() {
            let (resource, found) = file.resource(ResourceId::new(index as u32)).unwrap();
            assert_eq!(found, *offset);
            let start = found as usize;
            assert_eq!(bytes[start..start + resource.bytes as usize], vec![index as u8 + 1; resource.bytes as usize]);
        }
    }
}

#[test]
fn equal_programs_have_equal_bytes() {
    assert_eq!(write(&sample()).unwrap(), write(&sample()).unwrap());
}

#[test]
fn sizes_may_exceed_32_bits() {
    let mut program = ProgramBuilder::new("test");
    program.resource("a", 5 << 30).unwrap();
    program.resource("b", 7).unwrap();
    let layout = layout(&program.finish()).unwrap();
    assert!(layout.resource_offsets[1] > 5 << 30);
    assert_eq!(layout.resource_offsets[1] % 16, 0);
    let mut program = ProgramBuilder::new("test");
    program.resource("a", u64::MAX).unwrap();
    crate::mlirb::layout(&program.finish()).unwrap_err();
}

#[test]
fn a_file_never_ends_with_a_page() {
    let total = |bytes| {
        let mut program = ProgramBuilder::new("test");
        program.resource("a", bytes).unwrap();
        layout(&program.finish()).unwrap().total_bytes
    };
    let first = total(1 << 14);
    let totals: Vec<u64> = (0..4096).map(|more| total((1 << 14) + more)).collect();
    assert!(totals.iter().all(|total| total % 4096 != 0));
    let grown = totals.iter().zip(first..).filter(|(total, plain)| **total != *plain);
    assert_eq!(grown.count(), 1, "exactly one of the lengths would have ended with a page");
}

#[test]
fn resources_are_written_in_order_and_in_full() {
    let program = sample();
    let new = || Writer::new(&program, Vec::new()).unwrap();
    let error = new().resource(ResourceId::new(1)).unwrap_err().to_string();
    assert_eq!(error, "resources are written out of order: found 1, expected 0");
    assert_eq!(new().finish().unwrap_err().to_string(), "not all resources were written: found 0, expected 2");
    new().chunk(&[1]).unwrap_err();

    let mut writer = new();
    writer.resource(ResourceId::new(0)).unwrap();
    writer.chunk(&[0; 10]).unwrap();
    let error = writer.chunk(&[0; 7]).unwrap_err().to_string();
    assert_eq!(error, "resource `w.codes`: a resource has too many bytes: found 7 more bytes, expected at most 6 more");
    let error = writer.resource(ResourceId::new(1)).unwrap_err().to_string();
    assert_eq!(error, "resource `w.codes`: a resource has too few bytes: expected 6 more bytes");
}

#[test]
fn constants_are_as_long_as_their_types_say() {
    assert_eq!(
        broken(sample(), "primitive.constant_v1", |constant| {
            let value = DenseElements { splat: false, bytes: [0; 3].into() };
            constant.properties = Properties::Known(vec![Some(Attribute::DenseElements(value))]);
        }),
        "`serialization.asset`: graph `norm.rms_norm_0`: `primitive.constant_v1`: a constant of type tensor<1xsi32> \
         has the wrong length: found 3 bytes, expected 4 bytes"
    );
    let mut program = minimal();
    program.resources[0].bytes = 6;
    assert_eq!(
        check(&program).unwrap_err().to_string(),
        "`serialization.asset`: graph `main`: `primitive.constant_v1`: resource `w`: a constant of type tensor<2xf16> \
         has the wrong length: found 6 bytes, expected 4 bytes"
    );
    program.resources.clear();
    check(&program).unwrap_err();
    let error = RegionBuilder::new([]).constant(TensorType::new([2], F16), &[0; 3]).unwrap_err().to_string();
    assert_eq!(error, "a constant of type tensor<2xf16> has the wrong length: found 3 bytes, expected 4 bytes");
}

#[test]
fn narrow_elements_are_packed_in_resources_only() {
    let bytes = |element| {
        let ty = TensorType::new([5], element);
        (ty.inline_bytes(), ty.resource_bytes())
    };
    assert_eq!(bytes(ScalarType::UI1), (Some(1), Some(1)));
    assert_eq!(bytes(ScalarType::UI3), (Some(5), Some(2)));
    assert_eq!(bytes(ScalarType::SI4), (Some(5), Some(3)));
    assert_eq!(bytes(ScalarType::UI6), (Some(5), Some(4)));
    assert_eq!(bytes(ScalarType::Bool), (Some(5), Some(5)));
    assert_eq!(bytes(ScalarType::F32), (Some(20), Some(20)));
}

#[test]
fn equal_elements_are_stored_once() {
    let mut region = RegionBuilder::new([]);
    region.constant(TensorType::new([2, 2], I32), &[7, 0, 0, 0].repeat(4)).unwrap();
    region.constant(TensorType::new([2], I32), &[7, 0, 0, 0, 7, 0, 0, 1]).unwrap();
    let block = region.finish().block.unwrap();
    let lengths: Vec<_> = block
        .operations
        .iter()
        .map(|operation| match operation.property("value") {
            Some(Attribute::DenseElements(elements)) => (elements.splat, elements.bytes.len()),
            _ => (false, 0),
        })
        .collect();
    assert_eq!(lengths, [(true, 4), (false, 8)]);
}

#[test]
fn operations_have_what_they_need() {
    assert_eq!(
        broken(sample(), "softmax_v1", |softmax| softmax.regions.clear()),
        "`serialization.asset`: graph `main`: `softmax_v1`: a decomposable operation needs one region with one block"
    );
    assert_eq!(
        broken(minimal(), "primitive.add_v1", |add| add.operands[0] = ValueId(2)),
        "`serialization.asset`: graph `main`: `primitive.add_v1`: an operand is not defined before its use: \
         found %2, expected less than %2"
    );
    assert_eq!(
        broken(sample(), "primitive.gelu_v1", |gelu| gelu.properties = Properties::NONE),
        "`serialization.asset`: graph `main`: `primitive.gelu_v1`: the wrong number of properties: found 0, expected 1"
    );
}

#[test]
fn resources_have_distinct_keys_and_proper_alignments() {
    let mut builder = ProgramBuilder::new("test");
    builder.resource("w", 1).unwrap();
    assert_eq!(builder.resource("w", 2).unwrap_err().to_string(), "resource `w`: two resources have the same key");
    let mut program = builder.finish();
    program.resources.push(Resource::new("w", 3));
    check(&program).unwrap_err();
    program.resources[1] = Resource { alignment: 24, ..Resource::new("v", 3) };
    assert_eq!(check(&program).unwrap_err().to_string(), "resource `v`: not an alignment: found 24");
}

#[test]
fn each_state_is_given_back_as_its_token() {
    let graph = GraphBuilder::new("main", vec![Input::state("cache", Type::tensor([2], F16))]);
    assert_eq!(
        graph.finish(&[]).unwrap_err().to_string(),
        "graph `main`: the tokens a graph gives back are not those of its states in order: found [], expected [\"cache\"]"
    );
}

#[test]
fn operands_belong_to_their_region() {
    let mut region = RegionBuilder::new([Type::Token]);
    let error = region.add(NewOperation::new("primitive.exp_v1").operands([ValueId(1)])).unwrap_err().to_string();
    assert_eq!(error, "`primitive.exp_v1`: no such value in this region: found %1, expected less than %1");
}

#[test]
fn calls_have_the_signature_of_the_graph() {
    let program = |result: Type, callee: &str| {
        let ty = Type::tensor([2], F16);
        let mut callee_graph = GraphBuilder::new("callee", vec![Input::tensor("x", ty.clone())]).private();
        let x = callee_graph.input(0).unwrap();
        let y = callee_graph.body().value(NewOperation::new("primitive.exp_v1").operands([x]).result(ty.clone()));
        let mut main = GraphBuilder::new("main", vec![Input::tensor("x", ty)]);
        let x = main.input(0).unwrap();
        let outputs = main.body().invoke(callee, [x], [result]).unwrap();
        let mut program = ProgramBuilder::new("test");
        program.add(main.finish(&[("y", outputs[0])]).unwrap());
        program.add(callee_graph.finish(&[("y", y.unwrap())]).unwrap());
        program
    };
    check(&program(Type::tensor([2], F16), "callee").finish()).unwrap();
    assert_eq!(
        check(&program(Type::tensor([3], F16), "callee").finish()).unwrap_err().to_string(),
        "graph `main`: `dataflow.invoke_v1`: the results of a call are not those of graph `callee`: \
         found (tensor<3xf16>), expected (tensor<2xf16>)"
    );
    assert_eq!(
        check(&program(Type::tensor([2], F16), "other").finish()).unwrap_err().to_string(),
        "graph `main`: `dataflow.invoke_v1`: no such graph: found `other`"
    );
    let mut twice = program(Type::tensor([2], F16), "callee");
    twice.add(GraphBuilder::new("main", Vec::new()).finish(&[]).unwrap());
    assert_eq!(check(&twice.finish()).unwrap_err().to_string(), "graph `main`: two graphs have the same name");
}
