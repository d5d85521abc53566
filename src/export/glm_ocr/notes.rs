//! What an application has to know that no single number of the contract says.

use super::forms::Forms;
use crate::host::recipe::EngineRecipe;
use crate::host::slots::RopeShift;
use crate::passes::KvForm;

/// What the decoder needs of the engine that runs it.
pub(super) fn engine(forms: Forms, kv: KvForm) -> EngineRecipe {
    let reshapes = kv == KvForm::Dynamic;
    let option = if reshapes { " --expect-frequent-reshapes" } else { "" };
    EngineRecipe {
        chunk_threshold: forms.steps().then_some(1),
        expect_frequent_reshapes: reshapes,
        aot_compile: format!(
            "coreai-build compile decoder.aimodel --platform iOS --architecture h18p --preferred-compute gpu{option}"
        ),
    }
}

/// The same, and what surrounds it, as sentences.
pub(super) fn of_contract(forms: Forms, kv: KvForm) -> Vec<String> {
    let mut notes = Vec::new();
    if forms.steps() {
        notes.push(
            "`main` takes one token a call: set COREAI_CHUNK_THRESHOLD=1 before the engine is made, and warm it up \
             with one token"
                .to_owned(),
        );
    }
    if kv == KvForm::Dynamic {
        notes.push(
            "position_ids are 0 to the tokens read so far and grow with every call: load with expectFrequentReshapes, \
             or compile with the command `engine.aot_compile`"
                .to_owned(),
        );
    }
    notes.push("an answer ends at any token of `stop`, not at the eos_token of the tokenizer alone".to_owned());
    notes.push(
        "a page whose size, as the checkpoint's processor resizes it, is that of a grid is stretched to it; any other \
         is put on the grid whose sides come closest in ratio, its aspect kept, centred on `page.fill`"
            .to_owned(),
    );
    let RopeShift { start, amount } = RopeShift::NONE;
    notes.push(format!(
        "a prompt without a page takes any `image_embeds`, rope_shift_start {start} and rope_shift_amount {amount}"
    ));
    notes
}
