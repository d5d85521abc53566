//! Compares what two models say at each step.

use crate::{Error, Result};

/// Two rows of logits side by side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepComparison {
    /// The token the reference chooses: the first largest logit.
    pub reference_token: usize,
    /// The token the candidate chooses.
    pub candidate_token: usize,
    /// Logit of the reference's choice less its second largest logit; infinite for a vocabulary of one. A flip at a
    /// small margin means little.
    pub margin: f32,
    /// Largest absolute difference of two logits; not a number if a logit is not.
    pub max_difference: f32,
    /// Cosine of the angle between the rows; 1 if both are zero.
    pub cosine: f64,
}

impl StepComparison {
    /// Whether the candidate chooses another token.
    #[must_use]
    pub const fn is_flip(&self) -> bool {
        self.reference_token != self.candidate_token
    }
}

/// Compares logits `[steps, vocabulary]` step by step.
///
/// # Errors
/// When the two differ in length or are not whole rows.
pub fn compare_steps(reference: &[f32], candidate: &[f32], vocabulary: usize) -> Result<Vec<StepComparison>> {
    if reference.len() != candidate.len() || vocabulary == 0 || !reference.len().is_multiple_of(vocabulary) {
        return Err(Error::input("the logits do not fit each other")
            .found(format!("{} and {} logits", reference.len(), candidate.len()))
            .expected(format!("equally many rows of {vocabulary}")));
    }
    Ok(reference.chunks_exact(vocabulary).zip(candidate.chunks_exact(vocabulary)).map(|(r, c)| compare(r, c)).collect())
}

fn compare(reference: &[f32], candidate: &[f32]) -> StepComparison {
    let (reference_token, largest) = first_largest(reference);
    let others = reference.iter().enumerate().filter(|(token, _)| *token != reference_token);
    let second = others.fold(f32::NEG_INFINITY, |second, (_, &logit)| second.max(logit));
    let differences = reference.iter().zip(candidate).map(|(r, c)| (r - c).abs());
    StepComparison {
        reference_token,
        candidate_token: first_largest(candidate).0,
        margin: largest - second,
        max_difference: differences.fold(0.0, |largest, d| if d > largest || d.is_nan() { d } else { largest }),
        cosine: cosine(reference, candidate),
    }
}

fn first_largest(logits: &[f32]) -> (usize, f32) {
    let start = (0, f32::NEG_INFINITY);
    logits.iter().enumerate().fold(start, |best, (token, &logit)| if logit > best.1 { (token, logit) } else { best })
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let (aa, bb) = (dot(a, a), dot(b, b));
    if aa == 0.0 && bb == 0.0 { 1.0 } else { dot(a, b) / (aa * bb).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_do_not_flip() -> Result<()> {
        let steps = compare_steps(&[1.0, 3.0, 2.0], &[1.0, 3.0, 2.0], 3)?;
        let expected =
            StepComparison { reference_token: 1, candidate_token: 1, margin: 1.0, max_difference: 0.0, cosine: 1.0 };
        assert_eq!(steps, [expected]);
        assert!(!steps[0].is_flip());
        Ok(())
    }

    #[test]
    fn a_flip_has_the_margin_of_the_reference() -> Result<()> {
        let steps = compare_steps(&[0.0, 1.0, 5.0, 4.0], &[0.0, 1.0, 4.0, 6.0], 2)?;
        assert!(!steps[0].is_flip());
        assert!(steps[1].is_flip());
        assert_eq!((steps[1].margin, steps[1].max_difference), (1.0, 2.0));
        assert!((steps[1].cosine - (20.0 + 24.0) / (41.0f64 * 52.0).sqrt()).abs() < 1e-12);
        Ok(())
    }

    #[test]
    fn ties_go_to_the_first_and_not_a_number_is_seen() -> Result<()> {
        let steps = compare_steps(&[2.0, 2.0], &[2.0, f32::NAN], 2)?;
        assert_eq!((steps[0].reference_token, steps[0].margin), (0, 0.0));
        assert!(steps[0].max_difference.is_nan());
        let swallowed = compare_steps(&[0.0, 0.0], &[f32::NAN, 1.0], 2)?;
        assert!(swallowed[0].max_difference.is_nan());
        Ok(())
    }

    #[test]
    fn rows_must_fit() {
        assert!(compare_steps(&[1.0], &[1.0, 2.0], 1).is_err());
        assert!(compare_steps(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 2).is_err());
        assert!(compare_steps(&[], &[], 0).is_err());
    }
}
