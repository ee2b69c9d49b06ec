//! Reads any text as what a user may type.

use qcast::{DeviceSpec, FaultPlan, QKey};

/// Panics if a parser does, or if what was read is not read again from how it prints.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(spec) = text.parse::<DeviceSpec>() {
        let shown = spec.to_string();
        assert_eq!(shown.parse::<DeviceSpec>().ok(), Some(spec), "{text:?} prints as {shown:?}");
    }
    let _ = text.parse::<FaultPlan>();
    if let Ok(key) = text.parse::<QKey>() {
        assert_eq!(key.to_string().parse::<QKey>().ok(), Some(key));
        assert!(key.get() >> 31 == 0 && key.get() != 0);
    }
}
