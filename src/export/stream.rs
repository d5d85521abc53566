//! Weights made by several threads and written in order, with flat memory.
//!
//! The list of chunks is fixed beforehand and chunk `i` is made by thread `i mod n`, so what is written does not
//! depend on timing. Each thread is at most a few chunks ahead of the writer.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::bundle::Cancel;
use crate::progress::Progress;
use crate::weights::{Chunk, Recipe, WeightId, Weights, produce};
use crate::{Error, Result};

/// Elements of a chunk: 512 KiB of single-precision numbers while it is made, which stays in the cache of a core and
/// below the size at which allocators hand pages back to the system after each use.
const CHUNK: usize = 1 << 17;
/// Chunks a thread may be ahead.
const AHEAD: usize = 8;

/// Where chunks go.
pub(super) trait Sink {
    /// The weight at `index` of the list begins.
    fn begin(&mut self, index: usize) -> Result<()>;
    /// The next bytes of that weight.
    fn chunk(&mut self, bytes: &[u8]) -> Result<()>;
}

/// What surrounds long work.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    /// Threads that make weights.
    pub(super) threads: usize,
    pub(super) progress: &'a dyn Progress,
    pub(super) cancel: &'a Cancel,
}

/// Part of one weight.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    weight: WeightId,
    range: Range<usize>,
}

/// One weight of the list.
#[derive(Debug)]
enum Step {
    /// So many jobs follow.
    Make(usize),
    /// The scales that came out with the codes of a weight before.
    Kept(Recipe),
}

/// Values of a weight that became zero in half precision, where there are any.
pub(super) type Flushed = BTreeMap<WeightId, u64>;

/// Makes every weight of the list and hands it to the sink, in order.
pub(super) fn write(weights: &Weights, list: &[WeightId], sink: &mut dyn Sink, work: Work<'_>) -> Result<Flushed> {
    let (steps, jobs) = schedule(weights, list);
    let threads = work.threads.clamp(1, jobs.len().max(1));
    std::thread::scope(|scope| {
        let mut receivers = Vec::with_capacity(threads);
        for thread in 0..threads {
            let (sender, receiver) = sync_channel(AHEAD);
            let jobs = jobs.iter().skip(thread).step_by(threads);
            scope.spawn(move || make(weights, jobs, &sender));
            receivers.push(receiver);
        }
        Writing {
            weights,
            jobs: &jobs,
            receivers: &receivers,
            next: 0,
            kept: HashMap::new(),
            flushed: Flushed::new(),
            work,
        }
        .run(&steps, sink)
    })
}

fn schedule(weights: &Weights, list: &[WeightId]) -> (Vec<Step>, Vec<Job>) {
    let (mut steps, mut jobs) = (Vec::new(), Vec::new());
    for (index, &weight) in list.iter().enumerate() {
        let recipe = weights.recipe(weight);
        if is_kept(weights, &list[..index], recipe) {
            steps.push(Step::Kept(recipe.clone()));
            continue;
        }
        let elements = weights.elements(weight);
        let before = jobs.len();
        let starts = (0..elements).step_by(CHUNK);
        jobs.extend(starts.map(|start| Job { weight, range: start..(start + CHUNK).min(elements) }));
        steps.push(Step::Make(jobs.len() - before));
    }
    (steps, jobs)
}

/// Whether these are the scales of codes that are made before.
fn is_kept(weights: &Weights, before: &[WeightId], recipe: &Recipe) -> bool {
    let Recipe::Scales { of, coding } = recipe else {
        return false;
    };
    before.iter().any(|&id| *weights.recipe(id) == Recipe::Codes { of: *of, coding: *coding })
}

/// Makes chunks until they are all made or nobody waits for them.
fn make<'j>(weights: &Weights, jobs: impl Iterator<Item = &'j Job>, sender: &SyncSender<Result<Chunk>>) {
    for job in jobs {
        let chunk = produce(weights, job.weight, job.range.clone());
        let failed = chunk.is_err();
        if sender.send(chunk).is_err() || failed {
            return;
        }
    }
}

struct Writing<'a> {
    weights: &'a Weights,
    jobs: &'a [Job],
    receivers: &'a [Receiver<Result<Chunk>>],
    next: usize,
    /// Scales by their recipe, until they are written.
    kept: HashMap<Recipe, Vec<u8>>,
    flushed: Flushed,
    work: Work<'a>,
}

impl Writing<'_> {
    fn run(mut self, steps: &[Step], sink: &mut dyn Sink) -> Result<Flushed> {
        for (index, step) in steps.iter().enumerate() {
            sink.begin(index)?;
            match step {
                Step::Make(chunks) => {
                    for _ in 0..*chunks {
                        let chunk = self.receive()?;
                        self.put(sink, &chunk.bytes)?;
                    }
                }
                Step::Kept(recipe) => {
                    let bytes = self.kept.remove(recipe).unwrap_or_default();
                    self.put(sink, &bytes)?;
                }
            }
        }
        Ok(self.flushed)
    }

    fn put(&self, sink: &mut dyn Sink, bytes: &[u8]) -> Result<()> {
        self.work.cancel.check()?;
        sink.chunk(bytes)?;
        self.work.progress.advance(bytes.len() as u64);
        Ok(())
    }

    fn receive(&mut self) -> Result<Chunk> {
        let job = &self.jobs[self.next];
        let receiver = &self.receivers[self.next % self.receivers.len()];
        self.next += 1;
        let chunk = receiver.recv().map_err(|_| Error::environment("a thread that makes weights ended early"))??;
        if chunk.flushed > 0 {
            *self.flushed.entry(job.weight).or_default() += chunk.flushed;
        }
        if let Recipe::Codes { of, coding } = self.weights.recipe(job.weight) {
            let scales = Recipe::Scales { of: *of, coding: *coding };
            self.kept.entry(scales).or_default().extend_from_slice(&chunk.scales);
        }
        Ok(chunk)
    }
}
