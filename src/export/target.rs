//! Targets: which form of the key/value cache runs on which system, and who says so.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::passes::KvForm;
use crate::{Error, Result};

const FILE: &str = "manifests/targets.toml";
const SOURCE: &str = include_str!("../../manifests/targets.toml");

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compute {
    /// The processor.
    Cpu,
    /// The graphics processor.
    Gpu,
    /// The Neural Engine.
    Ane,
}

impl Compute {
    /// Every unit.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Gpu, Self::Ane];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Ane => "ane",
        }
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a bundle is meant to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The name on the command line: `macos26`.
    pub name: String,
    /// What computes there.
    pub compute: Compute,
    facts: Facts,
}

/// What is known of a system and one of its compute units.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Facts {
    title: String,
    prefer: Vec<String>,
    #[serde(default)]
    indexed: Statement,
    #[serde(default)]
    dynamic: Statement,
    #[serde(default)]
    blend: Statement,
    #[serde(default)]
    blend_whole: Statement,
    #[serde(default)]
    shift: Statement,
    #[serde(default)]
    host: Statement,
}

/// What is known of a form on a target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// Whether it runs.
    pub verdict: Verdict,
    /// What happens.
    #[serde(default)]
    pub says: String,
    /// Who says so.
    #[serde(default)]
    pub source: String,
}

/// Whether a form runs on a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It was seen to run.
    Runs,
    /// It was seen to fail.
    Crashes,
    /// Nobody has tried, as far as we know.
    #[default]
    Unknown,
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            Verdict::Runs => "runs",
            Verdict::Crashes => "crashes",
            Verdict::Unknown => "is not known to run",
        })?;
        if !self.says.is_empty() {
            write!(f, ": {}", self.says)?;
        }
        if !self.source.is_empty() {
            write!(f, " [{}]", self.source)?;
        }
        Ok(())
    }
}

impl Target {
    /// Every target with each of its compute units.
    ///
    /// # Errors
    /// When the table does not parse, which a test rules out.
    pub fn all() -> Result<Vec<Self>> {
        let table: BTreeMap<String, BTreeMap<Compute, Facts>> =
            toml::from_str(SOURCE).map_err(|e| Error::input(e.to_string()).at(FILE))?;
        let of = |(name, units): (String, BTreeMap<Compute, Facts>)| {
            units.into_iter().map(move |(compute, facts)| Self { name: name.clone(), compute, facts })
        };
        table.into_iter().flat_map(of).map(Self::checked).collect()
    }

    fn checked(self) -> Result<Self> {
        for form in self.preferred()? {
            if self.statement(form).verdict == Verdict::Crashes {
                return Err(Error::input("a form that crashes is preferred").at(FILE).at(self.name).found(form));
            }
        }
        Ok(self)
    }

    /// The target of this name; without a compute unit the GPU, or the only unit there is.
    ///
    /// # Errors
    /// When there is none; the error lists those there are.
    pub fn find(name: &str, compute: Option<Compute>) -> Result<Self> {
        let all = Self::all()?;
        let of_name: Vec<&Self> = all.iter().filter(|target| target.name == name).collect();
        if of_name.is_empty() {
            let mut names: Vec<String> = all.iter().map(|target| format!("`{}`", target.name)).collect();
            names.dedup();
            let error = Error::input("unknown target").at("--target").found(format!("`{name}`"));
            return Err(error.expected(names.join(", ")));
        }
        let wanted = compute.unwrap_or(Compute::Gpu);
        let found = of_name.iter().find(|target| target.compute == wanted);
        let only = if compute.is_none() { of_name.first() } else { None };
        match found.or(only) {
            Some(target) => Ok((*target).clone()),
            None => {
                let units: Vec<String> = of_name.iter().map(|target| format!("`{}`", target.compute)).collect();
                let error = Error::input(format!("nothing is known of this compute unit on `{name}`"));
                Err(error.at("--compute").found(format!("`{wanted}`")).expected(units.join(" or ")))
            }
        }
    }

    /// What it is called in sentences.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.facts.title
    }

    /// What is known of a form.
    #[must_use]
    pub const fn statement(&self, form: KvForm) -> &Statement {
        match form {
            KvForm::Indexed => &self.facts.indexed,
            KvForm::Dynamic => &self.facts.dynamic,
            KvForm::Blend => &self.facts.blend,
            KvForm::BlendWhole => &self.facts.blend_whole,
            KvForm::Shift => &self.facts.shift,
            KvForm::Host => &self.facts.host,
        }
    }

    /// The forms to choose from, the best first.
    fn preferred(&self) -> Result<Vec<KvForm>> {
        self.facts.prefer.iter().map(|name| KvForm::from_str(name)).collect()
    }

    /// The form for a model that has these: the first preferred one that is known to run, else the first preferred.
    ///
    /// # Errors
    /// When none of the model's forms is preferred.
    pub fn choose(&self, forms: &[KvForm]) -> Result<KvForm> {
        let candidates: Vec<KvForm> = self.preferred()?.into_iter().filter(|form| forms.contains(form)).collect();
        let runs = |form: &&KvForm| self.statement(**form).verdict == Verdict::Runs;
        candidates.iter().find(runs).or(candidates.first()).copied().ok_or_else(|| {
            Error::input(format!("no form of the key/value cache is known for {}", self.title())).at("--target")
        })
    }

    /// Refuses a form that is known to crash.
    ///
    /// # Errors
    /// When it is; the error says what happens, and the hint which form to take.
    pub fn check(&self, form: KvForm, forms: &[KvForm]) -> Result<()> {
        let statement = self.statement(form);
        if statement.verdict != Verdict::Crashes {
            return Ok(());
        }
        let error = Error::input(format!("the form `{form}` of the key/value cache {statement}"));
        let better = self.choose(forms)?;
        Err(error.at(format!("--kv {form} on {}", self.title())).hint(format!(
            "use `--kv {better}`, which {}; or `--allow-known-crash` to write the bundle all the same",
            self.statement(better)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_form_and_every_statement_a_source() {
        for target in Target::all().unwrap() {
            target.choose(&KvForm::ALL).unwrap();
            for form in KvForm::ALL {
                let statement = target.statement(form);
                let known = statement.verdict != Verdict::Unknown;
                assert_eq!(known, !statement.source.is_empty(), "{} {form}", target.name);
                assert!(statement.verdict != Verdict::Crashes || !statement.says.is_empty(), "{} {form}", target.name);
            }
            let again = Target::find(&target.name, Some(target.compute)).unwrap();
            assert_eq!(again, target);
        }
    }

    #[test]
    fn a_target_chooses_what_is_known_to_run() {
        for (name, compute, form) in [
            ("macos26", None, KvForm::Indexed),
            ("macos27-beta", None, KvForm::Blend),
            ("ios27-beta", None, KvForm::Host),
            ("ios27-beta", Some(Compute::Ane), KvForm::Host),
            ("linux", None, KvForm::Indexed),
        ] {
            assert_eq!(Target::find(name, compute).unwrap().choose(&KvForm::ALL).unwrap(), form, "{name}");
        }
        let target = Target::find("ios27-beta", None).unwrap();
        assert_eq!(target.choose(&[KvForm::Blend, KvForm::Dynamic]).unwrap(), KvForm::Dynamic);
        assert_eq!(target.choose(&[KvForm::Blend]).unwrap(), KvForm::Blend, "better than nothing");
        assert!(target.choose(&[KvForm::Indexed]).is_err());
    }

    #[test]
    fn a_form_that_crashes_is_refused_with_what_happens_and_what_to_take() {
        let target = Target::find("macos27-beta", None).unwrap();
        target.check(KvForm::Blend, &KvForm::ALL).unwrap();
        let error = target.check(KvForm::Indexed, &KvForm::ALL).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--kv indexed on macOS 27 beta, GPU: the form `indexed` of the key/value cache crashes: \
             SIGTRAP when the decoder first executes [zoo/indexed-crash]"
        );
        assert!(error.hint_text().unwrap().starts_with("use `--kv blend`, which runs: 35 layers"), "{error:?}");
    }

    #[test]
    fn unknown_targets_and_units_list_those_there_are() {
        let error = Target::find("vista", None).unwrap_err().to_string();
        let expected =
            "--target: unknown target: found `vista`, expected `ios27-beta`, `linux`, `macos26`, `macos27-beta`";
        assert_eq!(error, expected);
        let error = Target::find("macos26", Some(Compute::Ane)).unwrap_err().to_string();
        let expected = "--compute: nothing is known of this compute unit on `macos26`: found `ane`, expected `gpu`";
        assert_eq!(error, expected);
    }
}
