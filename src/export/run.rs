//! Writes what a blueprint says.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::blueprint::{AssetPlan, Blueprint, asset_path, producer};
use super::stream::{self, Flushed, Sink, Work};
use super::{Destination, ExportRequest};
use crate::asset::{Asset, AssetMetadata, AssetWriter};
use crate::bundle::{Cancel, LEDGER, METADATA, RECIPE, SourceDate, Staging, Target, write_json};
use crate::mlirb::ResourceId;
use crate::progress::Progress;
use crate::{Error, Result, aicode};

/// What surrounds an export.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Told how far the work is.
    pub progress: &'a dyn Progress,
    /// Asks for the work to stop.
    pub cancel: &'a Cancel,
    /// The date stamped on the bundle; without one it carries none.
    pub date: Option<SourceDate>,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings").field("date", &self.date).finish_non_exhaustive()
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportReport {
    /// The bundle, or the archive.
    pub output: PathBuf,
    /// Bytes of each asset's program.
    pub assets: Vec<(String, u64)>,
    /// What is worth a second look.
    pub warnings: Vec<String>,
}

/// Exports a model: checks, builds, writes under a hidden name, reads back, publishes.
///
/// # Errors
/// When anything stands in the way; nothing is at the destination then, and an older bundle is as it was.
pub fn export(
    request: &ExportRequest,
    destination: &Destination,
    surroundings: Surroundings<'_>,
) -> Result<ExportReport> {
    export_explained(request, destination, surroundings, &mut |_| ())
}

/// As [`export`]; `explain` sees what will be written before it is.
///
/// # Errors
/// As [`export`].
pub fn export_explained(
    request: &ExportRequest,
    destination: &Destination,
    surroundings: Surroundings<'_>,
    explain: &mut dyn FnMut(&Blueprint),
) -> Result<ExportReport> {
    let target = Target::new(&destination.path, destination.zip, destination.force)?;
    let blueprint = Blueprint::new(request)?;
    explain(&blueprint);
    write(&blueprint, &target, request.threads, surroundings)
}

fn write(
    blueprint: &Blueprint,
    target: &Target,
    threads: usize,
    surroundings: Surroundings<'_>,
) -> Result<ExportReport> {
    let Surroundings { progress, cancel, date } = surroundings;
    let staging = Staging::begin(target, blueprint.source.path.as_deref(), Some(blueprint.weight_bytes()))?;
    let work = Work { threads: thread_count(threads), progress, cancel };
    let folder = staging.folder().to_owned();
    let (mut assets, mut lost) = (Vec::new(), Vec::new());
    for asset in &blueprint.assets {
        progress.begin(asset.name, asset.layout.total_bytes);
        let flushed = write_asset(&folder, asset, date, work)?;
        lost.extend(lost_by_name(asset, &flushed));
        progress.end();
        assets.push((asset.name.to_owned(), asset.layout.total_bytes));
    }
    lost.extend(write_host_tensors(&folder, blueprint, work)?);
    write_small_files(&folder, blueprint, date)?;
    write_ledger(&folder, blueprint, &lost)?;
    progress.begin("check", 0);
    read_back(&folder, blueprint).map_err(|e| e.hint("this is a fault of aimodel: please report it"))?;
    progress.end();
    let warnings = blueprint.notes.iter().chain(staging.warnings()).cloned().chain(lost_warnings(&lost)).collect();
    let output = staging.publish(cancel)?;
    Ok(ExportReport { output, assets, warnings })
}

fn thread_count(asked: usize) -> usize {
    if asked > 0 { asked } else { std::thread::available_parallelism().map_or(1, usize::from) }
}

/// Weights that lost values which half precision cannot tell from zero, by their names in the ledger, and how many.
type Lost = Vec<(String, u64)>;

fn lost_by_name(asset: &AssetPlan, flushed: &Flushed) -> Lost {
    let resources = asset.lowered.program.resources.iter().zip(&asset.lowered.weights);
    let lost = resources.filter_map(|(resource, id)| Some((&resource.key, *flushed.get(id)?)));
    lost.map(|(key, count)| (format!("{}/{key}", asset.name), count)).collect()
}

/// One sentence a weight, and one for all that are too many to list.
fn lost_warnings(lost: &Lost) -> Vec<String> {
    let (shown, rest) = lost.split_at(lost.len().min(LISTED));
    let sentence = |(weight, count): &(String, u64)| format!("{weight}: {}", flushed_remark(*count));
    let mut warnings: Vec<String> = shown.iter().map(sentence).collect();
    if !rest.is_empty() {
        let remark = flushed_remark(rest.iter().map(|(_, count)| count).sum());
        warnings.push(format!("{} more weights: {remark}; {LEDGER} lists them all", rest.len()));
    }
    warnings
}

/// Weights that are listed one by one.
const LISTED: usize = 5;

fn flushed_remark(count: u64) -> String {
    format!("{count} values too small for half precision became zero")
}

fn write_asset(folder: &Path, asset: &AssetPlan, date: Option<SourceDate>, work: Work<'_>) -> Result<Flushed> {
    let path = folder.join(asset_path(asset.name));
    create_parent(&path)?;
    let mut metadata = AssetMetadata::new(producer());
    metadata.creation_date = date.map(SourceDate::compact);
    let mut sink = AssetSink { writer: AssetWriter::create(&path, &asset.lowered.program, &metadata)? };
    let flushed = stream::write(&asset.module.weights, &asset.lowered.weights, &mut sink, work)?;
    sink.writer.finish()?;
    Ok(flushed)
}

struct AssetSink {
    writer: AssetWriter,
}

impl Sink for AssetSink {
    fn begin(&mut self, index: usize) -> Result<()> {
        let index = u32::try_from(index).map_err(|_| Error::input("too many resources"))?;
        self.writer.resource(ResourceId::new(index))
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.chunk(bytes)
    }
}

fn write_host_tensors(folder: &Path, blueprint: &Blueprint, work: Work<'_>) -> Result<Lost> {
    let mut lost = Lost::new();
    let weights = &blueprint.host_weights;
    let total = blueprint.host_tensors.iter().map(|(_, id)| weights.bytes(*id)).sum();
    work.progress.begin("host tensors", total);
    for (name, id) in &blueprint.host_tensors {
        let path = folder.join(name);
        create_parent(&path)?;
        let file = File::create(&path).map_err(|e| Error::io(&path, &e))?;
        let mut sink = FileSink { file: BufWriter::new(file), path };
        let flushed = stream::write(weights, &[*id], &mut sink, work)?;
        sink.file.flush().map_err(|e| Error::io(&sink.path, &e))?;
        lost.extend(flushed.get(id).map(|count| (name.clone(), *count)));
    }
    work.progress.end();
    Ok(lost)
}

struct FileSink {
    file: BufWriter<File>,
    path: PathBuf,
}

impl Sink for FileSink {
    fn begin(&mut self, _index: usize) -> Result<()> {
        Ok(())
    }

    fn chunk(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| Error::io(&self.path, &e))
    }
}

fn write_small_files(folder: &Path, blueprint: &Blueprint, date: Option<SourceDate>) -> Result<()> {
    let recipe = blueprint.recipe.to_json()?;
    let texts = std::iter::once((RECIPE, recipe.as_bytes()));
    for (path, bytes) in texts.chain(blueprint.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice()))) {
        let path = folder.join(path);
        create_parent(&path)?;
        std::fs::write(&path, bytes).map_err(|e| Error::io(&path, &e))?;
    }
    write_json(&folder.join(METADATA), &blueprint.metadata(date))
}

fn write_ledger(folder: &Path, blueprint: &Blueprint, lost: &Lost) -> Result<()> {
    let mut accounts = blueprint.accounts.clone();
    lost.iter().for_each(|(weight, count)| accounts.remark(weight, &flushed_remark(*count)));
    write_json(&folder.join(LEDGER), &accounts)
}

fn create_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) => std::fs::create_dir_all(parent).map_err(|e| Error::io(parent, &e)),
        None => Ok(()),
    }
}

/// Reads every asset with our own reader and compares it with what was to be written.
fn read_back(folder: &Path, blueprint: &Blueprint) -> Result<()> {
    for plan in &blueprint.assets {
        let asset = Asset::open(folder.join(asset_path(plan.name)))?;
        if *asset.program() != plan.lowered.program {
            return Err(Error::check("the program read back is not the one written").at(plan.name));
        }
        let raised = aicode::raise(asset.file())?;
        let names = |entries: Vec<&str>| entries.join(", ");
        let (found, expected) = (
            names(raised.entries().map(|f| f.name.as_str()).collect()),
            names(plan.module.entries().map(|f| f.name.as_str()).collect()),
        );
        if found != expected {
            return Err(Error::check("the functions read back are not those written").found(found).expected(expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_listed_up_to_a_number_and_summed_beyond() {
        let lost = |weights: u64| (1..=weights).map(|i| (format!("decoder/w{i}"), i)).collect::<Lost>();
        assert_eq!(lost_warnings(&lost(0)), [""; 0]);
        assert_eq!(lost_warnings(&lost(1)), ["decoder/w1: 1 values too small for half precision became zero"]);
        assert_eq!(lost_warnings(&lost(5)).len(), 5);
        let warnings = lost_warnings(&lost(7));
        assert_eq!(warnings.len(), 6);
        let last = "2 more weights: 13 values too small for half precision became zero; ledger.json lists them all";
        assert_eq!(warnings[5], last);
    }
}
