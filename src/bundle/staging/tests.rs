use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::bundle::{Kind, METADATA, Metadata, Source, write_json};
use crate::error::ErrorClass;

/// A folder to publish to.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn target(&self, name: &str, force: bool) -> Target {
        Target::new(&self.path(name), name.ends_with(".zip"), force).unwrap()
    }

    fn begin(&self, name: &str, force: bool) -> Result<Staging> {
        Staging::begin(&self.target(name, force), None, None)
    }

    /// Publishes a bundle with one file of the given name.
    fn publish(&self, name: &str, force: bool, file: &str) -> Result<PathBuf> {
        let staging = self.begin(name, force)?;
        fill(staging.folder(), file);
        staging.publish(&Cancel::default())
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.0.path().read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn fill(folder: &Path, file: &str) {
    let source = Source { model_definition: "m".into(), hf_model_id: None, hf_revision: None };
    write_json(&folder.join(METADATA), &Metadata::new(Kind::Llm, "m", source)).unwrap();
    fs::write(folder.join(file), file).unwrap();
}

fn input(result: Result<Staging>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Input, "{error}");
    assert!(error.hint_text().is_some(), "no hint: {error}");
    error.to_string()
}

#[test]
fn a_published_bundle_is_all_that_is_there() {
    for name in ["out", "out.zip"] {
        let place = Place::new();
        let staging = place.begin(name, false).unwrap();
        assert!(!place.path(name).exists(), "nothing is visible before the end");
        fill(staging.folder(), "a");
        assert_eq!(staging.publish(&Cancel::default()).unwrap(), place.path(name));
        assert_eq!(place.names(), [name]);
    }
}

#[test]
fn no_name_of_a_bundle_is_special() {
    let place = Place::new();
    for name in ["bundle", "bundle.zip", "bundle.zip.zip", "replaced"] {
        // What a run killed at its start leaves is never taken for an older bundle.
        let Staging { work, _lock: lock, .. } = place.begin(name, false).unwrap();
        let _ = work.keep();
        drop(lock);
        place.publish(name, false, "a").unwrap();
        place.publish(name, true, "b").unwrap();
    }
    assert_eq!(place.names(), ["bundle", "bundle.zip", "bundle.zip.zip", "replaced"]);
    assert!(place.path("replaced/b").exists());
}

#[test]
fn a_dropped_or_cancelled_bundle_leaves_nothing() {
    for name in ["out", "out.zip"] {
        let place = Place::new();
        drop(place.begin(name, false).unwrap());
        assert!(place.names().is_empty(), "{:?}", place.names());
        let cancel = Cancel::default();
        cancel.request();
        let staging = place.begin(name, false).unwrap();
        fill(staging.folder(), "a");
        assert!(staging.publish(&cancel).is_err());
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
}

#[test]
fn a_missing_or_wrong_parent_is_named() {
    let place = Place::new();
    assert!(input(place.begin("missing/out", false)).contains("missing: the folder for the output does not exist"));
    fs::write(place.path("file"), "").unwrap();
    let error = place.begin("file/out", false).unwrap_err().to_string();
    assert!(error.contains("file"), "{error}");
    assert_eq!(place.names(), ["file"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_parent_that_cannot_be_written_to_is_the_environments_fault() {
    // Not even the superuser makes files here.
    let error = Staging::begin(&Target::new(Path::new("/proc/out"), false, false).unwrap(), None, None).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Environment);
    assert!(error.to_string().starts_with("/proc: nothing can be written to this folder"), "{error}");
}

#[test]
fn an_existing_output_is_refused_before_any_work() {
    let place = Place::new();
    for name in ["out", "out.zip"] {
        place.publish(name, false, "a").unwrap();
        assert!(input(place.begin(name, false)).contains("the output already exists"));
    }
    assert_eq!(place.names(), ["out", "out.zip"]);
}

#[test]
fn force_replaces_bundles_as_a_whole() {
    let place = Place::new();
    place.publish("out", false, "old").unwrap();
    place.publish("out", true, "new").unwrap();
    assert!(place.path("out/new").exists() && !place.path("out/old").exists());
    place.publish("out.zip", false, "old").unwrap();
    let old = fs::read(place.path("out.zip")).unwrap();
    place.publish("out.zip", true, "new").unwrap();
    assert_ne!(fs::read(place.path("out.zip")).unwrap(), old);
    assert_eq!(place.names(), ["out", "out.zip"]);
}

#[test]
fn force_never_replaces_what_is_not_ours() {
    let place = Place::new();
    fs::create_dir_all(place.path("documents")).unwrap();
    fs::write(place.path("documents/thesis"), "years").unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("plain"), "text").unwrap();
    fs::write(place.path("plain.zip"), "text").unwrap();
    fs::create_dir(place.path("theirs")).unwrap();
    fs::write(place.path("theirs/metadata.json"), r#"{"producer": "coreai-models"}"#).unwrap();
    let before = place.names();
    for name in ["documents", "empty", "plain", "plain.zip", "theirs"] {
        let error = input(place.begin(name, true));
        assert!(error.contains("was not made by aimodel"), "{name}: {error}");
    }
    // A folder is never replaced by an archive, nor an archive by a folder.
    place.publish("ours", false, "a").unwrap();
    place.publish("ours.zip", false, "a").unwrap();
    let crossed = Target::new(&place.path("ours"), true, true).unwrap();
    assert!(input(Staging::begin(&crossed, None, None)).contains("was not made by aimodel"));
    let crossed = Target::new(&place.path("ours.zip"), false, true).unwrap();
    assert!(input(Staging::begin(&crossed, None, None)).contains("was not made by aimodel"));
    assert_eq!(fs::read(place.path("documents/thesis")).unwrap(), b"years");
    assert_eq!(place.names().len(), before.len() + 2);
}

#[test]
fn an_older_bundle_survives_whatever_fails() {
    let place = Place::new();
    for name in ["out", "out.zip"] {
        place.publish(name, false, "old").unwrap();
        let old = content(&place.path(name));
        drop(place.begin(name, true).unwrap());
        let staging = place.begin(name, true).unwrap();
        fs::remove_dir_all(staging.folder()).unwrap();
        assert!(staging.publish(&Cancel::default()).is_err());
        assert_eq!(content(&place.path(name)), old);
    }
    assert_eq!(place.names(), ["out", "out.zip"]);
}

fn content(path: &Path) -> Vec<u8> {
    fs::read(if path.is_dir() { path.join("old") } else { path.to_owned() }).unwrap()
}

#[test]
fn a_failed_swap_puts_the_older_bundle_back() {
    let place = Place::new();
    place.publish("out", false, "old").unwrap();
    let (path, aside) = (place.path("out"), place.path("aside"));
    assert!(replace(&place.path("never made"), &path, &aside).is_err());
    assert_eq!(place.names(), ["out"]);
    assert!(place.path("out/old").exists());
}

#[test]
fn what_appears_at_the_output_during_the_work_is_left_alone() {
    for name in ["out", "out.zip"] {
        let place = Place::new();
        let staging = place.begin(name, false).unwrap();
        fill(staging.folder(), "a");
        fs::write(place.path(name), "another program's").unwrap();
        let error = staging.publish(&Cancel::default()).unwrap_err().to_string();
        assert!(error.contains("already exists"), "{error}");
        assert_eq!(fs::read(place.path(name)).unwrap(), b"another program's");
        assert_eq!(place.names(), [name]);
    }
}

#[test]
fn output_and_checkpoint_lie_apart() {
    let place = Place::new();
    fs::create_dir_all(place.path("models/checkpoint")).unwrap();
    fs::write(place.path("models/checkpoint/model.safetensors"), "").unwrap();
    let begin =
        |name: &str, checkpoint: &str| Staging::begin(&place.target(name, true), Some(&place.path(checkpoint)), None);
    assert!(input(begin("models/checkpoint/out", "models/checkpoint")).contains("inside the checkpoint"));
    assert!(input(begin("models/checkpoint", "models/checkpoint")).contains("inside the checkpoint"));
    assert!(input(begin("models", "models/checkpoint")).contains("the checkpoint is inside the output"));
    let file = "models/checkpoint/model.safetensors";
    assert!(input(begin("models/checkpoint", file)).contains("the checkpoint is inside the output"));
    begin("models/out", "models/checkpoint").unwrap();
    begin("models/checkpoint-out", "models/checkpoint").unwrap();
}

#[cfg(unix)]
#[test]
fn links_do_not_hide_that_the_output_is_in_the_checkpoint() {
    let place = Place::new();
    fs::create_dir(place.path("checkpoint")).unwrap();
    std::os::unix::fs::symlink(place.path("checkpoint"), place.path("link")).unwrap();
    let target = place.target("link/out", false);
    assert!(input(Staging::begin(&target, Some(&place.path("checkpoint")), None)).contains("inside the checkpoint"));
}

#[cfg(unix)]
#[test]
fn a_linked_output_is_refused_and_a_linked_parent_is_warned_of() {
    let place = Place::new();
    fs::create_dir(place.path("real")).unwrap();
    std::os::unix::fs::symlink(place.path("real"), place.path("link")).unwrap();
    std::os::unix::fs::symlink(place.path("nowhere"), place.path("dangling")).unwrap();
    for name in ["link", "dangling"] {
        assert!(input(place.begin(name, true)).contains("the output is a symbolic link"));
    }
    let staging = place.begin("link/out", false).unwrap();
    assert!(matches!(staging.warnings(), [one] if one.contains("link is a symbolic link")), "{:?}", staging.warnings());
    assert!(place.begin("real/out2", false).unwrap().warnings().is_empty());
}

#[test]
fn a_bundle_that_does_not_fit_is_refused_beforehand() {
    let place = Place::new();
    let free = fs4::available_space(place.0.path()).unwrap();
    let error = Staging::begin(&place.target("out", false), None, Some(u64::MAX)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Environment);
    assert!(error.to_string().contains("the disk has too little room"), "{error}");
    // An archive needs the room of the files and of itself.
    let (most, zip) = (free / 4 * 3, place.target("out.zip", false));
    assert!(Staging::begin(&zip, None, Some(most)).is_err());
    Staging::begin(&place.target("out", false), None, Some(most)).unwrap();
    assert!(place.names().is_empty());
}

#[test]
fn a_second_run_to_one_output_is_told_who_has_it() {
    let place = Place::new();
    let first = place.begin("out", false).unwrap();
    let error = place.begin("out", false).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Environment);
    assert!(error.to_string().contains(&format!("locked by pid {}", std::process::id())), "{error}");
    place.begin("other", false).unwrap();
    assert!(first.folder().exists(), "the second run touches nothing of the first");
    drop(first);
    place.begin("out", false).unwrap();
}

#[test]
fn files_that_look_like_ours_but_are_not_stay() {
    let place = Place::new();
    fs::create_dir(place.path(".out.partial-notes-of-mine")).unwrap();
    fs::write(place.path(".out.partial-abcdef"), "a file").unwrap();
    fs::create_dir(place.path(".out2.partial-abcdef")).unwrap();
    place.publish("out", false, "a").unwrap();
    let kept = [".out.partial-abcdef", ".out.partial-notes-of-mine", ".out2.partial-abcdef", "out"];
    assert_eq!(place.names(), kept);
}

#[test]
fn a_bundle_set_aside_by_a_killed_run_comes_back() {
    let place = Place::new();
    place.publish("out", false, "old").unwrap();
    fs::create_dir(place.path(".out.partial-abcdef")).unwrap();
    fs::rename(place.path("out"), place.path(".out.partial-abcdef/replaced")).unwrap();
    assert!(input(place.begin("out", false)).contains("already exists"));
    assert!(place.path("out/old").exists());
    assert_eq!(place.names(), ["out"]);
}

#[cfg(unix)]
#[test]
fn permissions_of_a_published_folder_are_the_users_own() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    fs::create_dir(place.path("plain")).unwrap();
    let path = place.publish("out", false, "a").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&place.path("plain")));
}

/// Where the other process of the test below publishes to.
const OUTPUT: &str = "AIMODEL_TEST_OUTPUT";

/// Runs this test program again as a process that has begun to write over the bundle `out`.
fn other_process(place: &Place) -> (Child, impl BufRead) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bundle::staging::tests::works_until_it_is_killed", "--ignored", "--nocapture"])
        .env(OUTPUT, place.path("out"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Its output stays open for as long as it runs.
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let begun = stdout.by_ref().lines().map_while(Result::ok).any(|line| line.ends_with("working"));
    assert!(begun, "the other process did not begin");
    (child, stdout)
}

#[test]
#[ignore = "the other process of the test below"]
fn works_until_it_is_killed() {
    let Some(output) = std::env::var_os(OUTPUT) else { return };
    let staging = Staging::begin(&Target::new(Path::new(&output), false, true).unwrap(), None, None).unwrap();
    fill(staging.folder(), "new");
    println!("working");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn a_killed_run_leaves_hidden_files_only_and_the_next_run_clears_them_away() {
    let place = Place::new();
    place.publish("out", false, "old").unwrap();
    let (mut child, _stdout) = other_process(&place);
    let error = place.begin("out", true).unwrap_err().to_string();
    #[cfg(unix)]
    assert!(error.ends_with(&format!("locked by pid {}", child.id())), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(place.path("out/old").exists());
    assert!(place.names().iter().all(|name| name == "out" || name.starts_with(".out.partial")), "{:?}", place.names());
    place.publish("out", true, "new").unwrap();
    assert_eq!(place.names(), ["out"]);
    assert!(place.path("out/new").exists());
}
