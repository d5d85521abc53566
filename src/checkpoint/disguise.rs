//! Files that are not what their name says: Git-LFS pointers, web pages, other weight formats.

use crate::{Error, Result};

/// Bytes to look at.
pub(super) const LOOK_BYTES: usize = 64;

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Refuses a Git-LFS pointer in place of any file.
pub(super) fn refuse_pointer(start: &[u8]) -> Result<()> {
    if start.starts_with(POINTER) {
        return Err(Error::input("a Git-LFS pointer, not the file itself")
            .hint("run `git lfs pull` in the folder, or download the file again"));
    }
    Ok(())
}

/// Refuses the start of a file that is known to be neither safetensors nor JSON.
pub(super) fn refuse_foreign(start: &[u8]) -> Result<()> {
    refuse_pointer(start)?;
    refuse_page(start)?;
    if start.starts_with(b"GGUF") {
        return Err(Error::input("a GGUF file").hint("use the original safetensors checkpoint"));
    }
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"\x80\x02") {
        return Err(Error::input("a PyTorch pickle").hint("save the model as safetensors first"));
    }
    Ok(())
}

/// Refuses a web page or a server's XML message.
pub(super) fn refuse_page(start: &[u8]) -> Result<()> {
    let text = start.trim_ascii_start();
    let begins = |tag: &[u8]| text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag));
    if [b"<!doctype".as_slice(), b"<html", b"<?xml", b"<head"].into_iter().any(begins) {
        return Err(Error::input("a web page saved in place of the file")
            .hint("download the file again; a private model needs you to be logged in"));
    }
    Ok(())
}
