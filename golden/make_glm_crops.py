"""What transformers reads on the upper part of each golden page of glm-ocr-tiny, for tests of a second grid.

    python golden/make_glm_crops.py        writes golden/pages/expected_glm_ocr_crops.json

Needs transformers 5.24.0, torch (made with 2.15.0, CPU, f32, greedy, eager attention) and pillow.
"""

import json
import pathlib

import torch
from PIL import Image
from transformers import AutoTokenizer, GlmOcrForConditionalGeneration
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil

GOLDEN = pathlib.Path(__file__).parent
MODEL = GOLDEN / "trained" / "glm-ocr-tiny"
PAGES = GOLDEN / "pages"
HEIGHT = 168
"""Of the crops, in pixels: 6 rows of visual tokens, where whole pages have 8."""


def read(model, tokenizer, processor, page):
    pixels = processor(images=[page.convert("RGB")], return_tensors="pt")
    _, rows, columns = pixels["image_grid_thw"][0].tolist()
    merge = model.config.vision_config.spatial_merge_size
    tokens = rows * columns // merge**2
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Text Recognition:"}]}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    image = model.config.image_token_id
    prompt = [t for i in tokenizer(text)["input_ids"] for t in ([i] * tokens if i == image else [i])]
    ids = torch.tensor([prompt])
    made = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == image).int(),
        pixel_values=pixels["pixel_values"], image_grid_thw=pixels["image_grid_thw"],
        do_sample=False, max_new_tokens=200, output_logits=True, return_dict_in_generate=True)
    top = torch.cat(made.logits).float().topk(2, -1).values
    output = made.sequences[0, len(prompt):].tolist()
    grid = [rows // merge, columns // merge]
    return grid, prompt, output, tokenizer.decode(output, skip_special_tokens=True), (top[:, 0] - top[:, 1]).min()


def main():
    torch.set_num_threads(1)
    model = GlmOcrForConditionalGeneration.from_pretrained(
        MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    processor = Glm46VImageProcessorPil.from_pretrained(MODEL)
    pages = []
    for page in json.loads((PAGES / "expected_glm_ocr.json").read_text())["pages"]:
        image = Image.open(PAGES / page["file"])
        assert read(model, tokenizer, processor, image)[2] == page["output_ids"], "the whole page is read otherwise"
        crop = image.crop((0, 0, image.width, HEIGHT))
        grid, prompt, ids, text, margin = read(model, tokenizer, processor, crop)
        pages.append({"file": page["file"], "output": text, "output_ids": ids, "smallest_margin": round(float(margin), 4)})
    expected = {"size": [image.width, HEIGHT], "grid": grid, "prompt_length": len(prompt), "pages": pages}
    (PAGES / "expected_glm_ocr_crops.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
