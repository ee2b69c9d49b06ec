//! Who is in a group.

mod event;
mod member;
mod view;

pub use event::MemberEvent;
pub use member::{
    MAX_HOST, MAX_METADATA, MAX_PAIRS, Member, MemberInfo, MemberState, Profile, ProfileError, Role,
};
pub use view::View;
