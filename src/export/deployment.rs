//! Where a bundle is to run, and what follows: the form of the key/value cache, and how functions are cut.

use super::{Compute, ExportRequest, Manifest, Target, Verdict};
use crate::passes::{ChunkLayers, KvForm};
use crate::{Error, Result};

/// Where a bundle is to run, and what follows from that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// The target, where one was asked for.
    pub target: Option<Target>,
    /// What computes, where that is known.
    pub compute: Option<Compute>,
    /// The form of the key/value cache.
    pub kv: KvForm,
    /// How the decoder is cut into functions of fewer layers, where that was asked for.
    pub chunking: Option<ChunkLayers>,
}

impl Deployment {
    /// What is asked for; else the target's choice of form, or the manifest's where there is no target.
    ///
    /// # Errors
    /// When target and compute unit are not known, the form is known to crash there and that was not allowed, or the
    /// parts of the request contradict each other.
    pub fn new(request: &ExportRequest, manifest: &Manifest) -> Result<Self> {
        let target = request.target.as_ref().map(|name| Target::find(name, request.compute)).transpose()?;
        let compute = target.as_ref().map(|target| target.compute).or(request.compute);
        let kv = chosen_kv(request, manifest, target.as_ref())?;
        let chunking = request.chunk_layers.map(|layers| ChunkLayers { layers });
        let deployment = Self { target, compute, kv, chunking };
        deployment.check_chunking()?;
        deployment.check_compute()?;
        Ok(deployment)
    }

    /// Whether the Neural Engine computes.
    #[must_use]
    pub fn on_neural_engine(&self) -> bool {
        self.compute == Some(Compute::Ane)
    }

    /// Whether a Metal kernel can run, as far as is known.
    #[must_use]
    pub fn takes_metal(&self) -> bool {
        self.compute.is_none_or(|compute| compute == Compute::Gpu)
    }

    /// The form is known to crash, and was allowed all the same.
    pub(super) fn warning(&self) -> Option<String> {
        let target = self.target.as_ref()?;
        let statement = target.statement(self.kv);
        let crashes = statement.verdict == Verdict::Crashes;
        crashes.then(|| format!("{}: the form `{}` of the key/value cache {statement}", target.title(), self.kv))
    }

    fn check_chunking(&self) -> Result<()> {
        if self.chunking.is_none() || self.kv == KvForm::Host {
            return Ok(());
        }
        let error = Error::input("a decoder is cut into functions only where the host keeps its key/value cache");
        let error = error.at("--chunk-layers").found(format!("the form `{}`", self.kv)).expected("the form `host`");
        Err(error.hint("use `--kv host`, or leave the option out"))
    }

    /// A target says which forms run on its units; of a unit alone only this is known.
    fn check_compute(&self) -> Result<()> {
        if self.target.is_some() || !self.on_neural_engine() || self.kv != KvForm::Dynamic {
            return Ok(());
        }
        let error = Error::input("the Neural Engine takes fixed shapes only").at("--compute ane");
        let error = error.found(format!("the form `{}` of the key/value cache", self.kv));
        Err(error.hint("use `--kv host`, or `--target` to have the form chosen"))
    }
}

fn chosen_kv(request: &ExportRequest, manifest: &Manifest, target: Option<&Target>) -> Result<KvForm> {
    let forms = &manifest.kv;
    let Some(form) = request.kv else {
        return target.map_or_else(|| manifest.default_kv(), |target| target.choose(forms));
    };
    if !forms.contains(&form) {
        let known: Vec<String> = forms.iter().map(|form| format!("`{form}`")).collect();
        let error = Error::input(format!("`{}` is not exported with this form", manifest.name)).at("--kv");
        return Err(error.found(format!("`{form}`")).expected(known.join(" or ")));
    }
    if let Some(target) = target
        && !request.allow_known_crash
    {
        target.check(form, forms)?;
    }
    Ok(form)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(request: &ExportRequest) -> Result<Deployment> {
        Deployment::new(request, &Manifest::find(&request.model).unwrap())
    }

    fn on(model: &str, target: &str) -> ExportRequest {
        ExportRequest { target: Some(target.to_owned()), ..ExportRequest::new(model) }
    }

    #[test]
    fn the_form_is_what_is_asked_for_else_the_targets_else_the_models() {
        for (model, form) in [("unlimited-ocr", KvForm::Indexed), ("glm-ocr", KvForm::Dynamic)] {
            assert_eq!(of(&ExportRequest::new(model)).unwrap().kv, form);
            for asked in KvForm::ALL {
                let request = ExportRequest { kv: Some(asked), ..ExportRequest::new(model) };
                assert_eq!(of(&request).unwrap().kv, asked);
            }
            assert_eq!(of(&on(model, "macos26")).unwrap().kv, KvForm::Indexed);
            assert_eq!(of(&on(model, "macos27-beta")).unwrap().kv, KvForm::Blend);
            assert_eq!(of(&on(model, "ios27-beta")).unwrap().kv, KvForm::Host);
            let request = ExportRequest { kv: Some(KvForm::Shift), ..on(model, "macos27-beta") };
            assert_eq!(of(&request).unwrap().kv, KvForm::Shift);
        }
    }

    #[test]
    fn what_computes_is_the_targets_unit() {
        assert_eq!(of(&on("glm-ocr", "linux")).unwrap().compute, Some(Compute::Cpu));
        assert_eq!(of(&on("glm-ocr", "ios27-beta")).unwrap().compute, Some(Compute::Gpu));
        assert_eq!(of(&ExportRequest::new("glm-ocr")).unwrap().compute, None);
        let ane = ExportRequest { compute: Some(Compute::Ane), ..on("glm-ocr", "ios27-beta") };
        let ane = of(&ane).unwrap();
        assert!(ane.on_neural_engine() && !ane.takes_metal());
        assert_eq!(ane.kv, KvForm::Host);
    }

    #[test]
    fn a_form_that_crashes_is_refused_unless_that_is_allowed_and_told_then() {
        let request = ExportRequest { kv: Some(KvForm::Indexed), ..on("unlimited-ocr", "macos27-beta") };
        let error = of(&request).unwrap_err();
        assert!(error.to_string().starts_with("--kv indexed on macOS 27 beta, GPU: the form `indexed`"), "{error}");
        let allowed = of(&ExportRequest { allow_known_crash: true, ..request }).unwrap();
        assert_eq!(allowed.kv, KvForm::Indexed);
        assert!(allowed.warning().unwrap().contains("SIGTRAP"));
        assert_eq!(of(&on("unlimited-ocr", "macos27-beta")).unwrap().warning(), None);
    }

    #[test]
    fn chunks_are_of_decoders_whose_host_keeps_the_cache() {
        let request = ExportRequest { chunk_layers: Some(8), ..ExportRequest::new("unlimited-ocr") };
        let error = of(&request).unwrap_err().to_string();
        assert!(error.starts_with("--chunk-layers: ") && error.contains("found the form `indexed`"), "{error}");
        let request = ExportRequest { kv: Some(KvForm::Host), ..request };
        assert_eq!(of(&request).unwrap().chunking, Some(ChunkLayers { layers: 8 }));
    }

    #[test]
    fn the_neural_engine_takes_no_shapes_that_grow() {
        let request = ExportRequest { compute: Some(Compute::Ane), ..ExportRequest::new("glm-ocr") };
        let error = of(&request).unwrap_err().to_string();
        assert!(error.starts_with("--compute ane: the Neural Engine takes fixed shapes only"), "{error}");
        of(&ExportRequest { kv: Some(KvForm::Blend), ..request }).unwrap();
    }
}
