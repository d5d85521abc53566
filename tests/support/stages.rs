//! A bundle on one of two runtimes, against what Hugging Face gives at a stage.

use aimodel::eval::Options;
use aimodel::export::ExportRequest;
use aimodel::host::reader::HostAssets;
use aimodel::runtime::eval::{Eval, Modules};
use aimodel::runtime::{Outputs, Runtime};

use super::bundles::Exported;
use super::{Reference, check_close, largest_difference, python};

/// Absolute where values are O(1), relative to the largest above that: both runtimes stay below a fifth of it.
const TOLERANCE: f32 = 2e-4;

/// What runs a bundle.
#[derive(Debug, Clone, Copy)]
pub enum On {
    /// The reference executor.
    Eval,
    /// Apple's runtime.
    CoreAi,
}

impl On {
    /// Exports, and does `work` with the bundle's host and the runtime over its assets.
    pub fn export(self, request: &ExportRequest, work: impl FnOnce(&mut dyn Runtime, &HostAssets)) {
        let bundle = Exported::new(request);
        match self {
            Self::Eval => {
                let modules = Modules::open(&bundle.assets()).unwrap();
                work(&mut Eval::new(&modules, Options::default()), &bundle.host());
            }
            Self::CoreAi => work(&mut python::core_ai(bundle.assets()), &bundle.host()),
        }
    }
}

/// The reference of one stage, and where it is compared. What is compared is printed.
pub struct Stage {
    on: On,
    name: String,
    pub tensors: Reference,
}

impl Stage {
    /// `golden/structure/MODEL/reference/STAGE.safetensors`.
    pub fn new(on: On, model: &str, stage: &str) -> Self {
        Self { on, name: stage.to_owned(), tensors: Reference::open(model, stage) }
    }

    /// The output that is named as the tensor is.
    pub fn check_output(&self, label: &str, outputs: &mut Outputs) {
        let (shape, want) = self.tensors.floats(label);
        self.check(label, &outputs.take_floats(label, &shape).unwrap(), &want);
    }

    /// One row of a tensor.
    pub fn check_row(&self, tensor: &str, row: usize, got: &[f32]) {
        let (_, want) = self.tensors.floats(tensor);
        self.check(&format!("{tensor}[{row}]"), got, &want[row * got.len()..][..got.len()]);
    }

    pub fn check(&self, tensor: &str, got: &[f32], want: &[f32]) {
        let magnitude = want.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
        let difference = largest_difference(got, want);
        println!("{:?} {} {tensor}: differs by {difference:.1e} of {magnitude:.1e}", self.on, self.name);
        check_close(&format!("{} {tensor}", self.name), got, want, TOLERANCE);
    }
}
