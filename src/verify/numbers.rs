//! What the functions compute: on a drawn page and a blank one, and side by side with the reference executor.

use ::image::RgbImage;
use serde::Serialize;

use super::caches::Caches;
use super::log::Log;
use super::pages;
use crate::error::At;
use crate::eval::{StepComparison, compare_steps};
use crate::host::reader::{HostAssets, Seen, Session};
use crate::runtime::Runtime;
use crate::runtime::eval::Eval;
use crate::{Error, Result};

/// Least cosine of the logits of a step to those of the reference.
pub const MIN_COSINE: f64 = 0.999;

/// A token may be another than the reference's where the reference prefers its own by less than this: 16 steps of
/// half precision for logits from 8 to 16.
pub const SMALL_MARGIN: f32 = 0.125;

/// Two pages give the same when no value differs by more than this part of the largest.
const SAME: f32 = 1e-3;

/// How a runtime compares with the reference, after the prompt and after each decode step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agreement {
    /// The runtime.
    pub runtime: String,
    /// Rows of logits compared.
    pub rows: usize,
    /// Cosine of the visual tokens.
    pub visual_cosine: f64,
    /// Least cosine of a row.
    pub worst_cosine: f64,
    /// Largest difference of two logits.
    pub largest_difference: f32,
    /// Steps with another token, where the reference's choice was a near tie.
    pub near_ties: usize,
}

/// What a page gives in one grid.
#[derive(Debug)]
pub(super) struct Answers {
    seen: Seen,
    /// One row after the prompt and one after each token.
    logits: Vec<f32>,
    tokens: Vec<u32>,
}

/// The calls that are made, the same on each runtime.
#[derive(Debug)]
pub(super) struct Exam<'h> {
    host: &'h HostAssets,
    steps: usize,
}

/// The grid in which tokens are decoded.
const FIRST: usize = 0;

impl<'h> Exam<'h> {
    pub(super) fn new(host: &'h HostAssets, steps: usize) -> Self {
        let exam = Self { host, steps };
        let room = host.recipe().cache.length.saturating_sub(exam.rows_of_prompt(FIRST));
        Self { host, steps: steps.min(room) }
    }

    /// Runs the drawn page on the reference executor, each token its own choice, and looks at the caches on the way.
    /// One answer for each grid, of which the first goes on after the prompt.
    pub(super) fn reference(&self, eval: &mut Eval<'_>, log: &mut Log<'_>) -> Result<Vec<Answers>> {
        let mut session = Session::new(self.host);
        let mut first = log.make("reference", || {
            Ok((prompt(&mut session, eval, FIRST)?, "the prompt in single precision".to_owned()))
        })?;
        let rows = self.rows_of_prompt(FIRST);
        let after_prompt = Caches::of(eval, &session)?;
        log.check("states-prefill", || after_prompt.check_prefill(rows))?;
        log.check("reference-decode", || {
            for _ in 0..self.steps {
                let id = first_largest(last_row(&first.logits, self.vocabulary()));
                first.tokens.push(id);
                first.logits.extend(decode(&mut session, eval, id)?);
            }
            Ok(format!("{} steps of its own choice: {:?}", self.steps, first.tokens))
        })?;
        let after_steps = Caches::of(eval, &session)?;
        log.check("states-decode", || after_steps.check_decode(&after_prompt, rows, self.steps))?;
        let mut answers = vec![first];
        self.in_other_grids("reference-grids", log, |grid| {
            answers.push(prompt(&mut session, eval, grid)?);
            Caches::of(eval, &session)?.check_prefill(self.rows_of_prompt(grid))
        })?;
        Ok(answers)
    }

    /// Runs both pages on `runtime`, fed with the reference's tokens, and compares.
    pub(super) fn candidate(&self, runtime: &mut dyn Runtime, reference: &[Answers], log: &mut Log<'_>) -> Result<()> {
        let mut session = Session::new(self.host);
        let (drawn, blank) = log.make("vision", || {
            let drawn = see(&session, runtime, FIRST, &pages::drawn())?;
            let blank = see(&session, runtime, FIRST, &pages::blank())?;
            let difference = differ("visual tokens", drawn.values(), blank.values())?;
            Ok(((drawn, blank), format!("finite; drawn and blank page differ by {difference:.3}")))
        })?;
        let logits = log.make("prefill", || {
            let blank = prefill(&mut session, runtime, &blank)?;
            let drawn = prefill(&mut session, runtime, &drawn)?;
            let difference = differ("logits", &drawn, &blank)?;
            Ok((drawn, format!("finite; drawn and blank page differ by {difference:.3}")))
        })?;
        let tokens = reference.first().map_or_else(Vec::new, |answers| answers.tokens.clone());
        let mut first = Answers { seen: drawn, logits, tokens };
        log.check("decode", || {
            for &id in &first.tokens {
                first.logits.extend(decode(&mut session, runtime, id)?);
            }
            Ok(format!("finite; {} steps with the reference's tokens", self.steps))
        })?;
        let mut answers = vec![first];
        self.in_other_grids("grids", log, |grid| {
            answers.push(prompt(&mut session, runtime, grid)?);
            Ok("finite".to_owned())
        })?;
        let agreement = log.make("agreement", || self.compare(runtime.name(), reference, &answers))?;
        log.compared(agreement);
        Ok(())
    }

    /// Makes a check in every grid but the first, if there are any.
    fn in_other_grids(
        &self,
        name: &'static str,
        log: &mut Log<'_>,
        mut work: impl FnMut(usize) -> Result<String>,
    ) -> Result<()> {
        let others = FIRST + 1..self.host.prompts().len();
        if others.is_empty() {
            return Ok(());
        }
        log.check(name, || {
            let said =
                others.map(|grid| Ok(format!("{}: {}", self.grid_name(grid), work(grid).at(|| self.grid_name(grid))?)));
            Ok(said.collect::<Result<Vec<_>>>()?.join("; "))
        })
    }

    fn compare(&self, runtime: &str, reference: &[Answers], candidate: &[Answers]) -> Result<(Agreement, String)> {
        let mut agreement = Agreement {
            runtime: runtime.to_owned(),
            rows: 0,
            visual_cosine: 1.0,
            worst_cosine: 1.0,
            largest_difference: 0.0,
            near_ties: 0,
        };
        for (grid, (reference, candidate)) in reference.iter().zip(candidate).enumerate() {
            let (visual, seen) = (reference.seen.values(), candidate.seen.values());
            let visual = compare_steps(visual, seen, visual.len())?;
            let rows = compare_steps(&reference.logits, &candidate.logits, self.vocabulary())?;
            agreement.take_in(&visual, &rows);
            let vision = visual.iter().map(|row| ("visual tokens".to_owned(), row, false));
            let steps = rows.iter().enumerate().map(|(step, row)| (place(step), row, true));
            let all = vision.chain(steps).try_for_each(|(place, row, chooses)| agrees(place, row, chooses));
            if grid == FIRST { all? } else { all.at(|| self.grid_name(grid))? }
        }
        let detail = detail(&agreement);
        Ok((agreement, detail))
    }

    fn vocabulary(&self) -> usize {
        self.host.recipe().vocab_size
    }

    fn rows_of_prompt(&self, grid: usize) -> usize {
        self.host.prompts().get(grid).map_or(0, |prompt| prompt.len())
    }

    fn grid_name(&self, grid: usize) -> String {
        let grids = self.host.recipe().contract.slots().map(|contract| &contract.grids);
        let sides = grids.and_then(|grids| grids.get(grid)?.grid().ok());
        sides.map_or_else(|| format!("grid {grid}"), |sides| format!("grid {sides}"))
    }
}

impl Agreement {
    /// Takes in one more page: its visual tokens, all as one row, and its rows of logits.
    fn take_in(&mut self, visual: &[StepComparison], logits: &[StepComparison]) {
        let least = |rows: &[StepComparison], start: f64| rows.iter().fold(start, |least, row| row.cosine.min(least));
        self.rows += logits.len();
        self.visual_cosine = least(visual, self.visual_cosine);
        self.worst_cosine = least(logits, self.worst_cosine);
        self.largest_difference = logits.iter().fold(self.largest_difference, |most, row| row.max_difference.max(most));
        self.near_ties += logits.iter().filter(|row| row.is_flip()).count();
    }
}

/// The drawn page, as far as the prompt.
fn prompt(session: &mut Session<'_>, runtime: &mut dyn Runtime, grid: usize) -> Result<Answers> {
    let seen = see(session, runtime, grid, &pages::drawn())?;
    let logits = prefill(session, runtime, &seen)?;
    Ok(Answers { seen, logits, tokens: Vec::new() })
}

fn see(session: &Session<'_>, runtime: &mut dyn Runtime, grid: usize, page: &RgbImage) -> Result<Seen> {
    let seen = session.see_in(runtime, grid, page)?;
    finite("visual tokens", seen.values())?;
    Ok(seen)
}

fn prefill(session: &mut Session<'_>, runtime: &mut dyn Runtime, seen: &Seen) -> Result<Vec<f32>> {
    let logits = session.prefill(runtime, seen)?;
    finite("logits", &logits)?;
    Ok(logits)
}

fn decode(session: &mut Session<'_>, runtime: &mut dyn Runtime, id: u32) -> Result<Vec<f32>> {
    let logits = session.decode(runtime, id)?;
    finite("logits", &logits)?;
    Ok(logits)
}

fn place(step: usize) -> String {
    if step == 0 { "prefill".to_owned() } else { format!("decode step {step}") }
}

fn detail(agreement: &Agreement) -> String {
    let Agreement { rows, worst_cosine, largest_difference, near_ties, .. } = agreement;
    let ties = match near_ties {
        0 => "same tokens".to_owned(),
        ties => format!("{ties} other tokens at margins below {SMALL_MARGIN}, the others the same"),
    };
    format!("{rows} rows of logits: {ties}, worst cosine {worst_cosine:.7}, largest difference {largest_difference:.4}")
}

/// Whether a row is near enough to the reference's; `chooses` when a token is chosen by it.
fn agrees(place: String, row: &StepComparison, chooses: bool) -> Result<()> {
    if row.cosine < MIN_COSINE || row.cosine.is_nan() {
        let error = Error::check("the numbers are not those of the reference").at(place);
        return Err(error.found(format!("cosine {:.6}", row.cosine)).expected(format!("at least {MIN_COSINE}")));
    }
    if chooses && row.is_flip() && row.margin >= SMALL_MARGIN {
        return Err(Error::check("another token than the reference's")
            .at(place)
            .found(format!("token {}", row.candidate_token))
            .expected(format!("token {}, preferred by {:.3}", row.reference_token, row.margin)));
    }
    Ok(())
}

fn finite(what: &str, values: &[f32]) -> Result<()> {
    match values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
        Some((index, found)) => {
            Err(Error::check(format!("the {what} are not all finite")).at(format!("element {index}")).found(found))
        }
        None => Ok(()),
    }
}

/// The largest difference, as part of the largest value; an error when it is next to nothing.
fn differ(what: &str, drawn: &[f32], blank: &[f32]) -> Result<f32> {
    let largest = drawn.iter().fold(f32::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    let difference = drawn.iter().zip(blank).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs())) / largest;
    if difference > SAME {
        return Ok(difference);
    }
    Err(Error::check(format!("the {what} of a drawn page are those of a blank one: the page is not seen"))
        .found(format!("a difference of {difference:e}"))
        .expected(format!("more than {SAME:e} of the largest")))
}

fn last_row(logits: &[f32], vocabulary: usize) -> &[f32] {
    logits.rchunks(vocabulary).next().unwrap_or_default()
}

fn first_largest(logits: &[f32]) -> u32 {
    let start = (0, f32::NEG_INFINITY);
    (0..).zip(logits).fold(start, |best, (id, &logit)| if logit > best.1 { (id, logit) } else { best }).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(reference: &[f32], candidate: &[f32]) -> StepComparison {
        compare_steps(reference, candidate, reference.len()).unwrap()[0]
    }

    #[test]
    fn another_token_is_a_finding_unless_the_reference_was_undecided() {
        agrees("prefill".to_owned(), &row(&[9.0, 9.1, 0.0], &[9.1, 9.0, 0.0]), true).unwrap();
        let flipped = row(&[9.0, 9.2, 0.0], &[9.2, 9.0, 0.0]);
        let error = agrees("decode step 1".to_owned(), &flipped, true).unwrap_err().to_string();
        let expected =
            "decode step 1: another token than the reference's: found token 0, expected token 1, preferred by 0.200";
        assert_eq!(error, expected);
        agrees("visual tokens".to_owned(), &flipped, false).unwrap();
    }

    #[test]
    fn a_low_cosine_is_a_finding_and_so_is_none() {
        let error = agrees("prefill".to_owned(), &row(&[1.0, 0.0], &[1.0, 0.1]), true).unwrap_err().to_string();
        assert_eq!(
            error,
            "prefill: the numbers are not those of the reference: found cosine 0.995037, expected at least 0.999"
        );
        agrees("prefill".to_owned(), &row(&[1.0, 0.0], &[f32::NAN, 0.1]), true).unwrap_err();
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        let error = finite("logits", &[0.0, f32::INFINITY]).unwrap_err().to_string();
        assert_eq!(error, "element 1: the logits are not all finite: found inf");
        finite("logits", &[1.0]).unwrap();
    }

    #[test]
    fn a_page_that_changes_nothing_is_found() {
        assert_eq!(differ("logits", &[0.0, -4.0], &[0.0, -3.0]).unwrap(), 0.25);
        differ("logits", &[0.0, 4.0], &[0.001, 4.001]).unwrap_err();
        differ("logits", &[0.0], &[0.0]).unwrap_err();
    }
}
