//! A modify: judged by [`qcast_proto::qp`] first, then put to the device.

use std::os::raw::c_int;

use nix::libc;
use qcast_proto::qp::{
    AddressVector, Attr, ModifyContext, ModifyError, PrecheckError, QpAttrs, QpState, validate,
};
use rdma_sys as sys;

use super::gid;
use super::layout::Plain;
use super::qp::Qp;
use super::ret;
use crate::device::{DeviceError, QpInfo};

impl Qp {
    /// Changes the queue pair if the tables allow it and the device does. The state that is held to be true is the
    /// device's own, asked for before: it may have moved by itself.
    pub(super) fn modify(
        &mut self,
        attrs: &QpAttrs,
        context: &ModifyContext,
    ) -> Result<(), DeviceError> {
        let held = self.query()?.state;
        let context = ModifyContext { qp_port: self.port, ..*context };
        let judged = validate(self.kind, held, attrs, &context);
        let accepted = judged.inspect_err(|error| {
            tracing::debug!(qpn = %self.number, %held, %attrs, %error, "refused a modify");
        })?;
        // Drivers differ on a claim that is not true; this is the answer that nobody can misread.
        if attrs.cur_state().is_some_and(|claimed| claimed != held) {
            let source = std::io::Error::from_raw_os_error(libc::EINVAL);
            let call = "ibv_modify_qp (CUR_STATE is not the QP's state)";
            return Err(DeviceError::Os { call, source });
        }
        if accepted.step.is_noop() {
            // There are adapters that refuse INIT after a RESET->RESET.
            tracing::debug!(qpn = %self.number, step = %accepted.step, "left out a modify that changes nothing");
            return Ok(());
        }
        let (mut raw, mask) = raw_attrs(attrs);
        match self.modify_raw(&mut raw, mask) {
            Ok(()) => {}
            Err(DeviceError::Os { source, .. })
                if accepted.may_need_privilege && source.raw_os_error() == Some(libc::EPERM) =>
            {
                let attempt = accepted.step.attempt();
                return Err(ModifyError::from(PrecheckError::PrivilegedQkey { attempt }).into());
            }
            // Until the sends that were begun are finished Soft-RoCE lets a queue pair in SQD go to ERR alone.
            Err(_) if held == QpState::Sqd && self.query()?.draining => {
                return Err(DeviceError::Busy("a queue pair in SQD whose sends are not finished"));
            }
            Err(DeviceError::Os { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                let (attempt, passed) = (accepted.step.attempt(), accepted.passed);
                return Err(DeviceError::ModifyRefused { attempt, passed, source });
            }
            Err(error) => return Err(error),
        }
        tracing::debug!(qpn = %self.number, step = %accepted.step, %attrs, "modified");
        if let Some(port) = attrs.port() {
            self.port = Some(port);
        }
        self.state = accepted.step.to();
        if self.state == QpState::Reset {
            self.port = None;
        }
        Ok(())
    }

    /// The verb itself.
    pub(super) fn modify_raw(
        &mut self,
        attrs: &mut sys::ibv_qp_attr,
        mask: c_int,
    ) -> Result<(), DeviceError> {
        // SAFETY: the queue pair lives while `self` does; `attrs` outlives the call.
        let code = unsafe { sys::ibv_modify_qp(self.as_ptr(), attrs, mask) };
        ret::returned("ibv_modify_qp", code)
    }

    /// Asks the device for the state and the key.
    pub(super) fn query(&mut self) -> Result<QpInfo, DeviceError> {
        let attr = self.query_raw()?;
        let state = QpState::from_raw(attr.qp_state).map_err(|_| DeviceError::Os {
            call: "ibv_query_qp (a state that is none of the seven)",
            source: std::io::Error::from_raw_os_error(libc::EINVAL),
        })?;
        self.state = state;
        Ok(QpInfo { state, qkey: attr.qkey, draining: attr.sq_draining != 0 })
    }

    fn query_raw(&mut self) -> Result<sys::ibv_qp_attr, DeviceError> {
        let mut attr = sys::ibv_qp_attr::zeroed();
        let mut init = sys::ibv_qp_init_attr::zeroed();
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE | sys::ibv_qp_attr_mask::IBV_QP_QKEY;
        // SAFETY: the queue pair lives while `self` does; both places outlive the call.
        let code =
            unsafe { sys::ibv_query_qp(self.as_ptr(), &mut attr, mask.0 as c_int, &mut init) };
        ret::returned("ibv_query_qp", code)?;
        Ok(attr)
    }
}

/// The attributes as the verb takes them.
pub(super) fn raw_attrs(attrs: &QpAttrs) -> (sys::ibv_qp_attr, c_int) {
    let mut raw = sys::ibv_qp_attr::zeroed();
    for attr in attrs {
        match *attr {
            Attr::State(state) => raw.qp_state = state.raw(),
            Attr::CurState(state) => raw.cur_qp_state = state.raw(),
            Attr::EnSqdAsyncNotify(on) => raw.en_sqd_async_notify = on.into(),
            Attr::Access(flags) => raw.qp_access_flags = flags.bits(),
            Attr::PkeyIndex(index) => raw.pkey_index = index,
            Attr::Port(port) => raw.port_num = port,
            Attr::QKey(key) => raw.qkey = key.0,
            Attr::Av(av) => raw.ah_attr = raw_av(&av),
            Attr::PathMtu(mtu) => raw.path_mtu = mtu.raw(),
            Attr::Timeout(n) => raw.timeout = n,
            Attr::RetryCnt(n) => raw.retry_cnt = n,
            Attr::RnrRetry(n) => raw.rnr_retry = n,
            Attr::RqPsn(psn) => raw.rq_psn = psn.get(),
            Attr::MaxQpRdAtomic(n) => raw.max_rd_atomic = n,
            // A marker without a value; the path is all zero.
            Attr::AltPath => {}
            Attr::MinRnrTimer(n) => raw.min_rnr_timer = n,
            Attr::SqPsn(psn) => raw.sq_psn = psn.get(),
            Attr::MaxDestRdAtomic(n) => raw.max_dest_rd_atomic = n,
            Attr::PathMigState(state) => raw.path_mig_state = state.raw(),
            Attr::DestQpn(qpn) => raw.dest_qp_num = qpn.get(),
        }
    }
    // The masks of the kernel, of libibverbs and of `AttrMask` are the same bits.
    (raw, attrs.mask().bits() as c_int)
}

/// An address vector as verbs take it; whatever is not said is zero.
pub(super) fn raw_av(av: &AddressVector) -> sys::ibv_ah_attr {
    let mut raw = sys::ibv_ah_attr::zeroed();
    (raw.port_num, raw.dlid, raw.sl) = (av.port, av.dlid, av.sl);
    if let Some(grh) = av.grh {
        raw.is_global = 1;
        raw.grh.dgid = gid::to_raw(grh.dgid);
        raw.grh.sgid_index = grh.sgid_index;
        raw.grh.hop_limit = grh.hop_limit;
        raw.grh.traffic_class = grh.traffic_class;
        raw.grh.flow_label = grh.flow_label;
    }
    raw
}
