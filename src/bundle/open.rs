//! A published bundle, opened for reading.

use std::path::{Component, Path, PathBuf};

use super::{METADATA, Metadata, RECIPE, files, metadata};
use crate::error::At;
use crate::{Error, Result};

/// A bundle of ours on disk. The assets it names are there; what is in them has not been looked at.
#[derive(Debug, Clone)]
pub struct Bundle {
    path: PathBuf,
    metadata: Metadata,
}

impl Bundle {
    /// Opens the bundle in the folder `path`.
    ///
    /// # Errors
    /// When there is no folder, it is not a whole bundle, or not one of ours.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        check_folder(path)?;
        let file = path.join(METADATA);
        let bytes = files::read_small(&file, metadata::MAX_BYTES)?;
        let metadata = Metadata::parse(&bytes).at(|| file.display().to_string())?;
        let bundle = Self { path: path.to_owned(), metadata };
        bundle.check_assets().at(|| file.display().to_string())?;
        Ok(bundle)
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its metadata.
    #[must_use]
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Where the host's recipe is.
    #[must_use]
    pub fn recipe(&self) -> PathBuf {
        self.path.join(RECIPE)
    }

    /// Its assets, each with its part (`main`, `vision`) and folder, sorted by part.
    pub fn assets(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.metadata.assets.iter().map(|(part, place)| (part.as_str(), self.path.join(place)))
    }

    /// Bytes of all its files.
    ///
    /// # Errors
    /// When a file cannot be read, or something is no regular file.
    pub fn bytes(&self) -> Result<u64> {
        Ok(files::below(&self.path)?.iter().map(|file| file.bytes).sum())
    }

    fn check_assets(&self) -> Result<()> {
        for (part, place) in &self.metadata.assets {
            let field = format!("assets.{part}");
            if !is_inside(place) {
                return Err(Error::input("the path leads out of the bundle").at(field).found(format!("`{place}`")));
            }
            if !self.path.join(place).is_dir() {
                return Err(Error::input("the asset is not there: the bundle was copied in part")
                    .at(field)
                    .found(format!("no folder `{place}`"))
                    .hint("copy the bundle again, or export it again"));
            }
        }
        Ok(())
    }
}

fn is_inside(place: &str) -> bool {
    let mut parts = Path::new(place).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn check_folder(path: &Path) -> Result<()> {
    let place = path.display().to_string();
    let found = path.metadata().map_err(|e| Error::io(path, &e))?;
    if !found.is_dir() {
        let hint = match path.extension().is_some_and(|extension| extension == "zip") {
            true => "unpack the archive first",
            false => "name the folder that `aimodel export` has made",
        };
        return Err(Error::input("not a folder").at(place).hint(hint));
    }
    if path.join(METADATA).is_file() && !path.join("main.mlirb").is_file() {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (problem, hint) = if path.join("main.mlirb").exists() {
        ("an asset, not a bundle", "name the folder it lies in")
    } else if name.starts_with('.') && name.contains(".partial-") {
        ("an unfinished bundle", "the run that made it was killed; export again")
    } else {
        ("not a bundle", "name the folder that `aimodel export` has made")
    };
    Err(Error::input(problem).at(place).expected(format!("a folder with {METADATA}")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Kind, Source, write_json};

    fn sample(asset: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let source = Source { model_definition: "m".into(), hf_model_id: None, hf_revision: None };
        let mut metadata = Metadata::new(Kind::Llm, "m-fp16", source);
        metadata.assets.insert("main".into(), asset.into());
        write_json(&folder.path().join(METADATA), &metadata).unwrap();
        folder
    }

    fn refusal(path: &Path) -> String {
        format!("{:?}", Bundle::open(path).unwrap_err())
    }

    #[test]
    fn a_bundle_opens_and_lists_its_assets() {
        let folder = sample("assets/m.aimodel");
        std::fs::create_dir_all(folder.path().join("assets/m.aimodel")).unwrap();
        std::fs::write(folder.path().join("assets/m.aimodel/main.mlirb"), [0; 10]).unwrap();
        let bundle = Bundle::open(folder.path()).unwrap();
        let assets: Vec<_> = bundle.assets().collect();
        assert_eq!(assets, [("main", folder.path().join("assets/m.aimodel"))]);
        let metadata_bytes = std::fs::metadata(folder.path().join(METADATA)).unwrap().len();
        assert_eq!(bundle.bytes().unwrap(), metadata_bytes + 10);
        assert_eq!(bundle.metadata().name, "m-fp16");
    }

    #[test]
    fn a_bundle_copied_in_part_is_refused() {
        let error = refusal(sample("m.aimodel").path());
        assert!(error.contains("metadata.json: assets.main: the asset is not there"), "{error}");
    }

    #[test]
    fn an_asset_path_out_of_the_bundle_is_refused() {
        for place in ["../m.aimodel", "/tmp", "a/../../m", ""] {
            let error = refusal(sample(place).path());
            assert!(error.contains("the path leads out of the bundle"), "{place}: {error}");
        }
    }

    #[test]
    fn what_is_no_bundle_is_named_for_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        assert!(refusal(&inside("missing")).contains("missing: "), "{}", refusal(&inside("missing")));
        std::fs::write(inside("b.zip"), "").unwrap();
        assert!(refusal(&inside("b.zip")).contains("unpack the archive first"));
        assert!(refusal(folder.path()).contains("not a bundle"));
        std::fs::create_dir(inside(".b.partial-abcdef")).unwrap();
        assert!(refusal(&inside(".b.partial-abcdef")).contains("an unfinished bundle"));
        std::fs::create_dir(inside("m.aimodel")).unwrap();
        std::fs::write(inside("m.aimodel/main.mlirb"), "").unwrap();
        std::fs::write(inside("m.aimodel/metadata.json"), "{}").unwrap();
        assert!(refusal(&inside("m.aimodel")).contains("an asset, not a bundle"));
    }
}
