//! Whatever is written is read back.

use std::sync::Arc;

use proptest::prelude::*;

use super::{read, write};
use crate::mlirb::build::{GraphBuilder, Input, NewOperation, ProgramBuilder};
use crate::mlirb::{
    Approximation, Attribute, Backing, CompileUnit, DenseElements, Dim, Float, HwConstraints, Integer, Interpolation,
    Location, Metadata, PaddingMode, ParamConstant, ParamDeclaration, Program, Properties, ResourceId, ScalarType,
    ScanCombiner, ScatterMode, SourceFile, SourceRange, Subprogram, TensorType, Type,
};

fn text() -> impl Strategy<Value = Arc<str>> {
    ".{0,8}".prop_map(Arc::from)
}

fn scalar() -> impl Strategy<Value = ScalarType> {
    prop::sample::select(ScalarType::ALL)
}

fn dim() -> impl Strategy<Value = Dim> {
    prop_oneof![Just(Dim::Dynamic), (0..=i64::MAX as u64).prop_map(Dim::Fixed)]
}

fn integer() -> impl Strategy<Value = Integer> {
    (1u64..=64, any::<bool>(), any::<u64>())
        .prop_filter_map("fits", |(width, unsigned, bits)| Integer::new(width, unsigned, bits >> (64 - width)))
}

fn float() -> impl Strategy<Value = Float> {
    prop_oneof![
        any::<u16>().prop_map(Float::Bits16),
        any::<u32>().prop_map(Float::Bits32),
        any::<u64>().prop_map(Float::Bits64)
    ]
}

fn leaf() -> impl Strategy<Value = Attribute> {
    prop_oneof![
        text().prop_map(Attribute::String),
        integer().prop_map(Attribute::Integer),
        float().prop_map(Attribute::Float),
        (any::<bool>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(splat, bytes)| Attribute::DenseElements(DenseElements { splat, bytes: bytes.into() })),
        any::<u32>().prop_map(|index| Attribute::DenseResource(ResourceId::new(index))),
        prop::collection::vec(text(), 0..3).prop_map(|names| Attribute::SymbolRef(names.into())),
        prop::sample::select(PaddingMode::ALL).prop_map(Attribute::PaddingMode),
        prop::sample::select(Approximation::ALL).prop_map(Attribute::Approximation),
        prop::sample::select(ScatterMode::ALL).prop_map(Attribute::ScatterMode),
        prop::sample::select(ScanCombiner::ALL).prop_map(Attribute::ScanCombiner),
        prop::sample::select(Interpolation::ALL).prop_map(Attribute::Interpolation),
        any::<u64>().prop_map(Attribute::LifecyclePhase),
        (text(), text(), text()).prop_map(|(filename, directory, sha256)| Attribute::File(Arc::new(SourceFile {
            filename,
            directory,
            sha256
        }))),
        "[ -~]{0,8}".prop_map(|text| Attribute::Text(text.into())),
        Just(Attribute::Unit),
    ]
}

fn tensor(encoding: Option<Attribute>) -> impl Strategy<Value = Type> {
    (prop::collection::vec(dim(), 0..4), scalar())
        .prop_map(move |(shape, element)| TensorType { shape, element, encoding: encoding.clone() }.into())
}

fn ty_over(attribute: BoxedStrategy<Attribute>) -> BoxedStrategy<Type> {
    let leaf = prop_oneof![
        scalar().prop_map(Type::Scalar),
        prop::option::of(attribute).prop_flat_map(tensor),
        Just(Type::Token),
        Just(Type::ParamSymbol),
        Just(Type::ParamType),
        "[ -~]{0,8}".prop_map(|text| Type::Text(text.into())),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            inner.clone().prop_map(Type::handle),
            inner.clone().prop_map(|inner| Type::Unresolved(inner.into())),
            (list(), list()).prop_map(|(operands, results)| Type::function(operands, results)),
        ]
    })
    .boxed()
}

fn composed(inner: BoxedStrategy<Attribute>) -> impl Strategy<Value = Attribute> {
    let one = || inner.clone();
    let list = || prop::collection::vec(inner.clone(), 0..4);
    let ty = || ty_over(inner.clone());
    prop_oneof![
        list().prop_map(Attribute::array),
        (text(), list()).prop_map(|(name, parameters)| Attribute::opaque(name, parameters)),
        prop::collection::vec((text(), one()), 0..3).prop_map(Attribute::dictionary),
        ty().prop_map(Attribute::Type),
        (one(), ty()).prop_map(|(value, ty)| Attribute::ParamConstant(Arc::new(ParamConstant { value, ty }))),
        (text(), ty(), prop::option::of(one()))
            .prop_map(|(name, ty, value)| Attribute::ParamDeclaration(Arc::new(ParamDeclaration { name, ty, value }))),
        constraints(one()),
        locations(one()),
    ]
}

fn constraints(inner: BoxedStrategy<Attribute>) -> impl Strategy<Value = Attribute> {
    let numbers = || prop::collection::vec(any::<i64>(), 0..4);
    (numbers(), numbers(), prop::sample::select(Backing::ALL), prop::option::of(inner)).prop_map(
        |(alignments, interleave, backing, base)| {
            Attribute::HwConstraints(Arc::new(HwConstraints { alignments, interleave, backing, base }))
        },
    )
}

fn locations(inner: BoxedStrategy<Attribute>) -> impl Strategy<Value = Attribute> {
    let one = || inner.clone();
    let list = || prop::collection::vec(inner.clone(), 0..3);
    prop_oneof![
        (one(), any::<[u64; 4]>())
            .prop_map(|(file, range)| Attribute::SourceLocation(Arc::new(SourceRange { file, range }))),
        one().prop_map(|data| Attribute::MetadataData(Arc::new(data))),
        (text(), one()).prop_map(|(name, data)| Attribute::Metadata(Arc::new(Metadata { name, data }))),
        (text(), one(), text(), any::<bool>(), text()).prop_map(|(language, file, producer, optimized, flags)| {
            Attribute::CompileUnit(Arc::new(CompileUnit { language, file, producer, optimized, flags }))
        }),
        (one(), one(), text(), text()).prop_map(|(unit, file, name, linkage_name)| {
            let ty = Type::function(vec![], vec![Type::Token]);
            Attribute::Subprogram(Arc::new(Subprogram { ty, unit, file, name, linkage_name }))
        }),
        one().prop_map(|inner| Attribute::OpaqueLocation(Arc::new(inner))),
        list().prop_map(|metadata| Attribute::MetadataLocation(metadata.into())),
        (one(), one(), list(), list(), prop::option::of(one())).prop_map(
            |(source, scope, fused, metadata, inlined_at)| {
                Attribute::Location(Arc::new(Location { source, scope, fused, metadata, inlined_at }))
            }
        ),
    ]
}

fn attribute() -> BoxedStrategy<Attribute> {
    leaf().prop_recursive(3, 24, 4, composed).boxed()
}

/// A program whose graph has this attribute and an operation with these types.
fn holding(value: Attribute, types: Vec<Type>) -> Program {
    let mut graph = GraphBuilder::new("main", Vec::new());
    graph.body().add(NewOperation::new("primitive.split_v1").results(types)).unwrap();
    let mut graph = graph.finish(&[]).unwrap();
    if let Properties::Known(values) = &mut graph.properties {
        values[1] = Some(value);
    }
    let mut program = ProgramBuilder::new("test");
    program.add(graph);
    program.finish()
}

/// Operations without properties, each taking some of the values before it.
fn chain(operations: Vec<(String, Vec<prop::sample::Index>, Vec<Type>)>) -> Program {
    let mut graph = GraphBuilder::new("main", vec![Input::tensor("x", Type::tensor([2], ScalarType::F16))]);
    let mut values = vec![graph.input(0).unwrap()];
    for (name, operands, results) in operations {
        let operands: Vec<_> = operands.iter().map(|index| values[index.index(values.len())]).collect();
        values.extend(graph.body().add(NewOperation::new(name).operands(operands).results(results)).unwrap());
    }
    let mut program = ProgramBuilder::new("test");
    program.add(graph.finish(&[("y", values[values.len() - 1])]).unwrap());
    program.finish()
}

proptest! {
    #[test]
    fn attributes_and_types_survive(
        value in attribute(),
        types in prop::collection::vec(ty_over(attribute()), 0..4),
    ) {
        let program = holding(value, types);
        let file = read(&write(&program).unwrap()).unwrap();
        prop_assert_eq!(file.program(), &program);
        let _ = file.program().to_string();
    }

    #[test]
    fn operations_survive(operations in prop::collection::vec(
        (
            "(primitive[.])?[a-z]{1,3}_v1",
            prop::collection::vec(any::<prop::sample::Index>(), 1..4),
            prop::collection::vec(scalar().prop_map(|element| Type::tensor([2, 3], element)), 0..3),
        ),
        0..20,
    )) {
        let program = chain(operations);
        let file = read(&write(&program).unwrap()).unwrap();
        prop_assert_eq!(file.program(), &program);
    }

    #[test]
    fn resources_survive(lengths in prop::collection::vec(0u64..100, 0..10)) {
        let mut program = ProgramBuilder::new("test");
        for (index, bytes) in lengths.iter().enumerate() {
            program.resource(format!("resource_{index}"), *bytes).unwrap();
        }
        let program = program.finish();
        let file = read(&write(&program).unwrap()).unwrap();
        prop_assert_eq!(file.program(), &program);
    }
}
