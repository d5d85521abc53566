//! Damaged files are refused or read as something else; they never panic.

use proptest::prelude::*;

use super::samples::sample;
use super::{read, write};
use crate::mlirb::build::{GraphBuilder, ProgramBuilder};
use crate::mlirb::{Attribute, Program, check};

/// Reads, checks and shows damaged bytes.
fn survive(bytes: &[u8]) {
    if let Ok(file) = read(bytes) {
        let _ = check(file.program());
        let _ = file.program().with_decompositions().to_string();
    }
}

/// A program with `value` as an attribute of its graph.
fn holding(value: Attribute) -> Program {
    let mut graph = GraphBuilder::new("main", Vec::new()).finish(&[]).unwrap();
    if let crate::mlirb::Properties::Known(values) = &mut graph.properties {
        values[1] = Some(value);
    }
    let mut program = ProgramBuilder::new("test");
    program.add(graph);
    program.finish()
}

#[test]
fn a_truncated_file_is_refused() {
    let bytes = write(&sample()).unwrap();
    for length in 0..bytes.len() {
        let error = read(&bytes[..length]).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("test.mlirb: "), "{error}");
    }
}

#[test]
fn every_changed_byte_is_survived() {
    let bytes = write(&sample()).unwrap();
    for position in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[position] ^= change;
            survive(&damaged);
        }
    }
}

#[test]
fn errors_name_the_file_and_the_byte() {
    let mut bytes = write(&sample()).unwrap();
    bytes[4] = 0x0f;
    assert_eq!(
        read(&bytes).unwrap_err().to_string(),
        "test.mlirb: byte 4: a version of MLIR bytecode that is not supported: found 7, expected 5 or 6"
    );
    bytes[0] = b'P';
    assert_eq!(
        read(&bytes).unwrap_err().to_string(),
        "test.mlirb: byte 0: not MLIR bytecode: found [50, 4c, ef, 52], expected [4d, 4c, ef, 52]"
    );
}

#[test]
fn attributes_may_not_nest_without_bound() {
    let deep = (0..200).fold(Attribute::Unit, |inner, _| Attribute::array([inner]));
    let error = read(&write(&holding(deep)).unwrap()).unwrap_err().to_string();
    assert!(error.contains("nested too deeply"), "{error}");
}

#[test]
fn shared_attributes_may_not_multiply_without_bound() {
    let wide = (0..18).fold(Attribute::Unit, |inner, _| Attribute::array([inner.clone(), inner]));
    let error = read(&write(&holding(wide)).unwrap()).unwrap_err().to_string();
    assert!(error.contains("too many parts"), "{error}");
}

proptest! {
    #[test]
    fn random_damage_is_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = write(&sample()).unwrap();
        for (position, byte) in changes {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        survive(&bytes);
    }

    #[test]
    fn random_bytes_after_the_preamble_are_survived(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"ML\xefR\x0dtest\0".to_vec();
        bytes.extend(tail);
        survive(&bytes);
    }
}
