//! One archive of a bundle: the same files, the same bytes every time.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, System, ZipArchive, ZipWriter};

use super::files::{self, FileBelow};
use super::{Cancel, METADATA, metadata};
use crate::{Error, Result};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Permissions of every file: readable by all, writable by the owner.
const MODE: u32 = 0o644;

/// Sizes from here on need the zip64 form.
const ZIP64_FROM: u64 = u32::MAX as u64;

/// Writes the files of `folder` to a new archive at `path`, in sorted order, below the folder `root`.
///
/// Files are stored as they are: weights hardly compress. Times are the format's earliest, so that equal files give
/// equal archives.
///
/// # Errors
/// When a file cannot be read or written, or the work is cancelled.
pub(super) fn write(folder: &Path, root: &str, path: &Path, cancel: &Cancel) -> Result<()> {
    let files = files::below(folder)?;
    let file = File::create_new(path).map_err(|e| Error::io(path, &e))?;
    let mut archive = ZipWriter::new(BufWriter::with_capacity(CHUNK, file));
    for file in &files {
        add(&mut archive, file, root, cancel).map_err(|e| e.at(path.display().to_string()))?;
    }
    let buffered = archive.finish().map_err(|e| zip_error(path, e))?;
    let file = buffered.into_inner().map_err(|e| Error::io(path, e.error()))?;
    file.sync_all().map_err(|e| Error::io(path, &e))
}

fn add(archive: &mut ZipWriter<BufWriter<File>>, file: &FileBelow, root: &str, cancel: &Cancel) -> Result<()> {
    let name = format!("{root}/{}", file.relative);
    archive.start_file(name, options(file.bytes)).map_err(|e| zip_error(&file.path, e))?;
    let mut source = File::open(&file.path).map_err(|e| Error::io(&file.path, &e))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        cancel.check()?;
        let n = source.read(&mut chunk).map_err(|e| Error::io(&file.path, &e))?;
        if n == 0 {
            return Ok(());
        }
        archive.write_all(&chunk[..n]).map_err(|e| Error::environment(e.to_string()))?;
    }
}

fn options(bytes: u64) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::DEFAULT)
        .system(System::Unix)
        .unix_permissions(MODE)
        .large_file(bytes >= ZIP64_FROM)
}

/// Whether `path` is an archive of a bundle of ours.
pub(super) fn is_bundle(path: &Path) -> bool {
    metadata_of(path).is_some_and(|bytes| metadata::is_marked(&bytes))
}

fn metadata_of(path: &Path) -> Option<Vec<u8>> {
    let mut archive = ZipArchive::new(BufReader::new(File::open(path).ok()?)).ok()?;
    let is_metadata = |name: &str| name.split_once('/').is_some_and(|(_, below)| below == METADATA);
    let name = archive.file_names().flatten().find(|name| is_metadata(name))?.into_owned();
    let mut bytes = Vec::new();
    archive.by_name(&name).ok()?.take(metadata::MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn zip_error(path: &Path, error: zip::result::ZipError) -> Error {
    Error::io(path, &std::io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("b/tokenizer")).unwrap();
        std::fs::write(folder.path().join("b/metadata.json"), r#"{"producer": "aimodel 0.1.0"}"#).unwrap();
        std::fs::write(folder.path().join("b/tokenizer/tokenizer.json"), vec![7; CHUNK + 1]).unwrap();
        folder
    }

    fn archive_of(folder: &Path, name: &str) -> Vec<u8> {
        let path = folder.join(name);
        write(&folder.join("b"), "unlimited-ocr", &path, &Cancel::default()).unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn equal_files_give_equal_archives_whatever_their_times_and_modes() {
        let (first, second) = (sample(), sample());
        let file = File::options().write(true).open(second.path().join("b/metadata.json")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        assert_eq!(archive_of(first.path(), "1.zip"), archive_of(second.path(), "2.zip"));
    }

    #[test]
    fn the_archive_has_the_files_under_the_name_of_the_bundle() {
        let folder = sample();
        archive_of(folder.path(), "a.zip");
        let mut archive = ZipArchive::new(File::open(folder.path().join("a.zip")).unwrap()).unwrap();
        let names: Vec<String> = archive.file_names().map(|name| name.unwrap().into_owned()).collect();
        assert_eq!(names, ["unlimited-ocr/metadata.json", "unlimited-ocr/tokenizer/tokenizer.json"]);
        let mut bytes = Vec::new();
        archive.by_name(&names[1]).unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, vec![7; CHUNK + 1]);
        assert_eq!(archive.by_name(&names[0]).unwrap().unix_mode(), Some(0o100_644));
    }

    #[test]
    fn only_archives_with_our_mark_count_as_bundles() {
        let folder = sample();
        archive_of(folder.path(), "ours.zip");
        assert!(is_bundle(&folder.path().join("ours.zip")));
        std::fs::write(folder.path().join("b/metadata.json"), r#"{"producer": "other"}"#).unwrap();
        archive_of(folder.path(), "other.zip");
        assert!(!is_bundle(&folder.path().join("other.zip")));
        std::fs::write(folder.path().join("text.zip"), "no archive").unwrap();
        assert!(!is_bundle(&folder.path().join("text.zip")));
    }

    #[test]
    fn a_cancelled_archive_stops() {
        let folder = sample();
        let cancel = Cancel::default();
        cancel.request();
        let error = write(&folder.path().join("b"), "b", &folder.path().join("a.zip"), &cancel).unwrap_err();
        assert!(error.to_string().ends_with("interrupted"), "{error}");
    }

    #[test]
    fn a_file_of_four_gibibytes_takes_the_zip64_form() {
        // The flag shows in the local header: 20 bytes of extra field.
        let mut plain = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        plain.start_file("x", options(ZIP64_FROM - 1)).unwrap();
        let mut large = ZipWriter::new(std::io::Cursor::new(Vec::new()));
        large.start_file("x", options(ZIP64_FROM)).unwrap();
        let (plain, large) = (plain.finish().unwrap().into_inner(), large.finish().unwrap().into_inner());
        assert!(large.len() > plain.len(), "{} {}", large.len(), plain.len());
    }
}
