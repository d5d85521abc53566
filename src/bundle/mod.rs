//! The published folder: staging and publishing, metadata, ledger, archive, opening.
//!
//! Nothing half-written is ever visible. A bundle is built in a hidden work folder beside its destination, under a
//! lock for that destination, and renamed into place when it is whole. An older bundle is there until then, and is
//! put back when the last step fails. Whatever ends the work early, an error, a signal or a kill, leaves at most the
//! hidden work folder, which the next run to the same destination clears away.

mod archive;
mod cancel;
mod files;
mod ledger;
mod lock;
mod metadata;
mod open;
mod preflight;
mod staging;
mod stale;
mod target;

pub use cancel::Cancel;
pub use files::write_json;
pub use ledger::{Account, Accounts, Drop, Ledger, Totals, WeightRow};
pub use metadata::{Compilation, Compression, Decoder, Kind, Language, Metadata, Source, SourceDate};
pub use open::Bundle;
pub use staging::Staging;
pub use target::Target;

/// Name of the metadata in a bundle.
pub const METADATA: &str = "metadata.json";
/// Name of the ledger in a bundle.
pub const LEDGER: &str = "ledger.json";
/// Path of the host's recipe in a bundle.
pub const RECIPE: &str = "assets/recipe.json";
