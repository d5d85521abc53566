use super::*;
use crate::host::tokenizer::Tokenizer;

fn folder(name: &str) -> String {
    format!("{}/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn template(name: &str) -> ChatTemplate {
    let path = format!("{}/chat_template.jinja", folder(name));
    ChatTemplate::new(path.clone(), std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The ids of a prompt with its one image token repeated, as the processor of transformers does it.
fn expanded(prompt: &str, checkpoint: &str, image_token: u32, tokens: usize) -> Vec<u32> {
    let tokenizer = Tokenizer::open(format!("{}/tokenizer.json", folder(checkpoint))).unwrap();
    let ids = tokenizer.encode(prompt).unwrap();
    ids.into_iter().flat_map(|id| vec![id; if id == image_token { tokens } else { 1 }]).collect()
}

#[test]
fn the_trained_template_gives_the_prompt_transformers_was_given() {
    let prompt = template("trained/glm-ocr-tiny").page_prompt("Text Recognition:").unwrap();
    let expected = std::fs::read(folder("pages/expected_glm_ocr.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
    let ids = expanded(&prompt, "trained/glm-ocr-tiny", 498, 128);
    assert_eq!(serde_json::json!(ids), expected["prompt_ids"]);
}

#[test]
fn the_structural_template_gives_the_prompt_of_the_reference() {
    let prompt = template("structure/glm-ocr").page_prompt("Text Recognition:").unwrap();
    let meta = std::fs::read(folder("structure/glm-ocr/reference/meta.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&meta).unwrap();
    let repeated = prompt.replace("<|image|>", &"<|image|>".repeat(20));
    assert_eq!(serde_json::json!(repeated), meta["prompt"]);
}

#[test]
fn the_built_in_prompt_is_that_of_the_templates() {
    for checkpoint in ["trained/glm-ocr-tiny", "structure/glm-ocr"] {
        let prompt = template(checkpoint).page_prompt("Table Recognition:").unwrap();
        assert_eq!(glm_ocr_page_prompt("Table Recognition:"), prompt, "{checkpoint}");
    }
}

/// What published templates use beyond plain Jinja.
#[test]
fn macros_namespaces_and_python_methods_are_there() {
    let source = "{%- macro visible(content) -%}{%- if content is string -%}{{ content }}{%- else -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{ item.text }}
        {%- elif item is mapping and (item.type == 'image' or 'image' in item) -%}<i>{%- endif -%}
        {%- endfor -%}{%- endif -%}{%- endmacro -%}
        {%- set ns = namespace(last=-1) %}
        {%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 -%}{%- endif %}{%- endfor %}
        {{- ns.last }}{{ visible(messages[0].content).strip().split(':')[0] }}
        {{- '/nothink' if (enable_thinking is defined and not enable_thinking) else '' }}{{ tools }}";
    let template = ChatTemplate::new("chat_template.jinja", source).unwrap();
    assert_eq!(template.page_prompt("read: ").unwrap(), "0<i>read");
}

#[test]
fn text_is_not_escaped() {
    let template = ChatTemplate::new("template.html", "{{ messages[0].content[1].text }}").unwrap();
    assert_eq!(template.page_prompt("<a> & 'b'").unwrap(), "<a> & 'b'");
}

#[test]
fn templates_that_fail_say_where() {
    let cases = [
        ("a\n{% if %}", "in line 2"),
        ("{{ raise_exception('no images') }}", "no images"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "out of fuel"),
        ("{{ messages[0].content.nothing() }}", "in line 1"),
        ("{% include 'other' %}", "in line 1"),
    ];
    for (source, expected) in cases {
        let template = ChatTemplate::new("chat_template.jinja", source);
        let error = template.and_then(|template| template.page_prompt("x")).unwrap_err().to_string();
        assert!(error.starts_with("chat_template.jinja: ") && error.contains(expected), "{error}");
    }
    assert!(ChatTemplate::new("chat_template.jinja", " ".repeat(MAX_BYTES + 1)).is_err());
}
