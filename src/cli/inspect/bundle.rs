//! What is in a bundle.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::size;
use super::usage::{Bytes, Usage};
use crate::Result;
use crate::asset::Asset;
use crate::bundle::{Bundle, Metadata};
use crate::host::recipe::Recipe;

/// A bundle.
#[derive(Debug, Serialize)]
pub(super) struct View {
    path: PathBuf,
    bytes: u64,
    assets: BTreeMap<String, AssetView>,
    metadata: Metadata,
    /// What its recipe says to applications, as far as it can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// An asset of it, as far as its program can be read.
#[derive(Debug, Serialize)]
struct AssetView {
    path: PathBuf,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions: Vec<FunctionView>,
    /// Why the program cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct FunctionView {
    name: String,
    #[serde(flatten)]
    bytes: Bytes,
}

impl View {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let bundle = Bundle::open(path)?;
        Ok(Self {
            path: path.to_owned(),
            bytes: bundle.bytes()?,
            assets: bundle.assets().map(|(part, path)| (part.to_owned(), AssetView::of(path))).collect(),
            metadata: bundle.metadata().clone(),
            notes: Recipe::open(bundle.recipe()).map_or_else(|_| Vec::new(), |recipe| recipe.notes),
        })
    }
}

impl AssetView {
    /// A damaged program is shown as such: the rest of the bundle is worth a look all the more.
    fn of(path: PathBuf) -> Self {
        match Asset::open(&path) {
            Ok(asset) => {
                let functions = Usage::of(asset.program())
                    .entries()
                    .map(|(name, bytes)| FunctionView { name: name.to_owned(), bytes })
                    .collect();
                Self { path, functions, problem: None }
            }
            Err(error) => Self { path, functions: Vec::new(), problem: Some(error.to_string()) },
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metadata = &self.metadata;
        writeln!(f, "bundle       {}", metadata.name)?;
        writeln!(f, "size         {}", size(self.bytes))?;
        writeln!(f, "made by      {}", metadata.producer())?;
        writeln!(f, "model        {}", metadata.source.model_definition)?;
        match &metadata.compression {
            Some(compression) => {
                writeln!(f, "weights      {}, {} of them as codes", compression.scheme, compression.quantised_weights)?;
            }
            None => writeln!(f, "weights      not compressed")?,
        }
        if let Some(language) = &metadata.language {
            writeln!(f, "vocabulary   {} tokens", language.vocab_size)?;
            writeln!(f, "context      {} tokens", language.max_context_length)?;
        }
        self.assets.iter().try_for_each(|(part, asset)| write!(f, "asset        {part}: {asset}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note         {note}"))?;
        if metadata.debug {
            writeln!(f, "debug        returns probed values: not for use")?;
        }
        Ok(())
    }
}

impl fmt::Display for AssetView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.path.display())?;
        if let Some(problem) = &self.problem {
            writeln!(f, "  cannot be read: {problem}")?;
        }
        self.functions.iter().try_for_each(|FunctionView { name, bytes: Bytes { shared_bytes, unique_bytes } }| {
            writeln!(f, "  {name}: {shared_bytes} bytes of weights shared with other functions, {unique_bytes} its own")
        })
    }
}
