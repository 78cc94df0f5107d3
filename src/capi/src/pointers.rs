//! Pointers that come from C: what can be checked of them is checked here.
//!
//! What cannot be checked, the header demands of its callers: a pointer is NULL, or points to what its type says, and
//! nobody else writes there while the function runs; a handle was made here, was not ended, and is used by one thread
//! at a time unless its description permits more.

use std::ffi::{CStr, c_char, c_void};

use crate::border::Failed;

#[cold]
fn null(name: &str) -> Failed {
    Failed::argument(format!("`{name}` is NULL"))
}

/// A handle that one thread uses at a time.
///
/// # Safety
/// `handle` is NULL, or points to a `T` that nobody else uses for as long as `'a`.
#[inline]
pub(crate) unsafe fn exclusive<'a, T>(handle: *mut T, name: &str) -> Result<&'a mut T, Failed> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_mut() }.ok_or_else(|| null(name))
}

/// A handle that threads may share.
///
/// # Safety
/// `handle` is NULL, or points to a `T` that nobody changes or ends for as long as `'a`.
#[inline]
pub(crate) unsafe fn shared<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Failed> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| null(name))
}

/// Takes a handle back, to end it. `None` for NULL.
///
/// # Safety
/// `handle` is NULL, or came from [`Place::put`], and nobody uses it any more.
pub(crate) unsafe fn take<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: `put` made it of a box; by the caller's promise this is its only owner.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// Where a function puts a result.
pub(crate) struct Place<'a, T>(&'a mut std::mem::MaybeUninit<T>);

/// A place for a result.
///
/// # Safety
/// `place` is NULL, or a `T` may be written there for as long as `'a`.
#[inline]
pub(crate) unsafe fn place<'a, T>(place: *mut T, name: &str) -> Result<Place<'a, T>, Failed> {
    // SAFETY: the caller's promise; what is there is never read.
    let place = unsafe { place.cast::<std::mem::MaybeUninit<T>>().as_mut() };
    place.map(Place).ok_or_else(|| null(name))
}

impl<T> Place<'_, T> {
    /// Puts a value there.
    #[inline]
    pub(crate) fn set(self, value: T) {
        self.0.write(value);
    }
}

impl<T> Place<'_, *mut T> {
    /// Puts a new handle there.
    #[inline]
    pub(crate) fn put(self, handle: T) {
        self.set(Box::into_raw(Box::new(handle)));
    }
}

/// A text of C.
///
/// # Safety
/// `text` is NULL, or a text that ends with a zero and is not changed for as long as `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failed> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    let no_utf8 = |_| Failed::argument(format!("`{name}` is no UTF-8"));
    text.to_str().map_err(no_utf8)
}

/// `count` values of C, which may be NULL when there are none.
///
/// # Safety
/// `first` is NULL, or points to `count` values that nobody changes for as long as `'a`.
#[inline]
pub(crate) unsafe fn values<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failed> {
    check_count::<T>(first.is_null(), count, name)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not NULL, and no longer than a slice may be; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Room for `count` values, which may be NULL when there are none.
///
/// # Safety
/// `first` is NULL, or `count` values may be written there, and nobody else uses them for as long as `'a`.
#[inline]
pub(crate) unsafe fn room<'a, T>(
    first: *mut T,
    count: usize,
    name: &str,
) -> Result<&'a mut [std::mem::MaybeUninit<T>], Failed> {
    check_count::<T>(first.is_null(), count, name)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not NULL, and no longer than a slice may be; what is there is never read. The rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts_mut(first.cast(), count) })
}

#[inline]
fn check_count<T>(is_null: bool, count: usize, name: &str) -> Result<(), Failed> {
    let bytes = count.checked_mul(size_of::<T>());
    if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Failed::argument(format!(
            "`{name}` has {count} entries, which no memory has"
        )));
    }
    if is_null && count > 0 {
        return Err(null(name));
    }
    Ok(())
}

/// Bytes of C; as [`values`].
///
/// # Safety
/// As [`values`].
#[inline]
pub(crate) unsafe fn bytes<'a>(
    first: *const c_void,
    count: usize,
    name: &str,
) -> Result<&'a [u8], Failed> {
    // SAFETY: the caller's promise.
    unsafe { values(first.cast(), count, name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::RPCRDMA_E_ARGUMENT;

    #[test]
    fn detectably_invalid_pointer_arguments_are_refused() {
        let word = 7_u32;
        // SAFETY: NULL, or a word that is there; wrong lengths are refused before they are used.
        unsafe {
            let null = std::ptr::null_mut::<u32>();
            let refused = [
                exclusive(null, "it").err(),
                shared(null, "it").err(),
                place(null, "it").err(),
                values(null, 1, "it").err(),
                values(&raw const word, usize::MAX / 2, "it").err(),
                room(null, 1, "it").err(),
                text(std::ptr::null(), "it").err(),
                text(c"\xff".as_ptr(), "it").err(),
            ];
            for refused in refused {
                let refused = refused.expect("an error");
                assert_eq!(refused.code, RPCRDMA_E_ARGUMENT);
                assert!(refused.text.starts_with("`it` "), "{}", refused.text);
            }
            assert_eq!(values(&raw const word, 1, "it").expect("a word"), [7]);
            assert!(
                bytes(std::ptr::null(), 0, "it")
                    .expect("nothing")
                    .is_empty()
            );
            assert!(room(null, 0, "it").expect("nothing").is_empty());
            assert!(take(null).is_none());
        }
    }
}
