use std::path::Path;

use super::{Asset, AssetMetadata, AssetWriter, PROGRAM_FILE, creation_date};
use crate::ElementType::F16;
use crate::error::ErrorClass;
use crate::mlirb::build::{GraphBuilder, Input, NewOperation, ProgramBuilder};
use crate::mlirb::{Program, ResourceId, TensorType};

/// `y = x + w` with `w` in a resource.
fn program() -> Program {
    let mut program = ProgramBuilder::new("aimodel");
    let weight = program.resource("w", 4).unwrap();
    let ty = TensorType::new([2], F16);
    let mut graph = GraphBuilder::new("main", vec![Input::tensor("x", ty.clone())]);
    let x = graph.input(0).unwrap();
    let w = graph.body().resource_constant(ty.clone(), weight).unwrap();
    let y = graph.body().value(NewOperation::new("primitive.add_v1").operands([x, w]).result(ty)).unwrap();
    program.add(graph.finish(&[("y", y)]).unwrap());
    program.finish()
}

fn write(folder: &Path, metadata: &AssetMetadata) -> super::WrittenAsset {
    let mut writer = AssetWriter::create(folder, &program(), metadata).unwrap();
    writer.resource(ResourceId::new(0)).unwrap();
    writer.chunk(&[0, 0x3c]).unwrap();
    writer.chunk(&[0, 0x40]).unwrap();
    writer.finish().unwrap()
}

fn golden(name: &str) -> Asset {
    Asset::open(format!("{}/golden/apple/{name}.aimodel", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn an_asset_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("add.aimodel");
    let metadata = AssetMetadata { license: Some("MIT".to_owned()), ..AssetMetadata::new("aimodel 0.1") };
    let written = write(&path, &metadata);
    let asset = Asset::open(&path).unwrap();
    assert_eq!(asset.program(), &program());
    assert_eq!(asset.metadata(), &metadata);
    assert_eq!(asset.program_bytes(), written.program_bytes);
    assert_eq!(asset.hash().unwrap(), written.hash);
    asset.verify_hash().unwrap();
    let mut bytes = [0; 4];
    asset.tensor(ResourceId::new(0), F16, &[2]).unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [0, 0x3c, 0, 0x40]);
    asset.tensor(ResourceId::new(0), F16, &[3]).unwrap_err();
}

#[test]
fn metadata_have_the_keys_apple_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("add.aimodel");
    let date = creation_date(1_700_000_000).unwrap();
    write(&path, &AssetMetadata { creation_date: Some(date), ..AssetMetadata::new("aimodel 0.1") });
    insta::assert_snapshot!(std::fs::read_to_string(path.join("metadata.json")).unwrap(), @r#"
    {
      "assetVersion": "2.0",
      "producer": "aimodel 0.1",
      "creationDate": "20231114T221320Z"
    }
    "#);
}

#[test]
fn assets_of_apple_have_the_hash_they_say() {
    for name in ["sample", "debug"] {
        golden(name).verify_hash().unwrap();
    }
    assert_eq!(golden("sample").metadata().producer.as_deref(), Some("coreai-core 1.0.0b3"));
}

#[test]
fn a_damaged_weight_is_found_by_its_hash() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("add.aimodel");
    write(&path, &AssetMetadata::new("aimodel 0.1"));
    let asset = Asset::open(&path).unwrap();
    let (_, offset) = asset.file().resource(ResourceId::new(0)).unwrap();
    let mut bytes = std::fs::read(path.join(PROGRAM_FILE)).unwrap();
    bytes[usize::try_from(offset).unwrap()] ^= 1;
    std::fs::write(path.join(PROGRAM_FILE), bytes).unwrap();
    let error = Asset::open(&path).unwrap().verify_hash().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Check);
    assert!(error.to_string().contains("main.hash: it is not the hash of the program"), "{error}");
}

#[test]
fn other_versions_of_assets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("add.aimodel");
    write(&path, &AssetMetadata::new("aimodel 0.1"));
    std::fs::write(path.join("metadata.json"), r#"{"assetVersion": "9.9"}"#).unwrap();
    let error = Asset::open(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "metadata.json: $.assetVersion: a version of assets that is not supported: found `9.9`, expected `2.0`"
        ),
        "{error}"
    );
    std::fs::write(path.join("metadata.json"), "{}").unwrap();
    assert!(Asset::open(&path).unwrap_err().to_string().contains("assetVersion"));
}

#[test]
fn an_existing_folder_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    AssetWriter::create(folder.path(), &program(), &AssetMetadata::new("aimodel 0.1")).unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn errors_of_the_writer_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("add.aimodel");
    let writer = AssetWriter::create(&path, &program(), &AssetMetadata::new("aimodel 0.1")).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    let file = path.join(PROGRAM_FILE).display().to_string();
    assert_eq!(error, format!("{file}: not all resources were written: found 0, expected 1"));
}

#[test]
fn dates_are_those_of_the_calendar() {
    for (seconds, date) in [
        (0, "19700101T000000Z"),
        (951_782_400, "20000229T000000Z"),
        (1_709_251_199, "20240229T235959Z"),
        (4_107_542_400, "21000301T000000Z"),
        (253_402_300_799, "99991231T235959Z"),
    ] {
        assert_eq!(creation_date(seconds).unwrap(), date);
    }
    creation_date(253_402_300_800).unwrap_err();
    creation_date(u64::MAX).unwrap_err();
}
