// SPDX-License-Identifier: Apache-2.0

// Package cdi writes what a container runtime adds to a container that has a share of a GPU: one CDI spec for each
// claim, beside the spec that describes the GPUs themselves.
package cdi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// Kind of our devices, one for each share of a claim.
const Kind = "cuslice.dev/slice"

// Share is one result of an allocation. A claim may have several, of one GPU as well: they differ in the request or
// in the share id.
type Share struct {
	ClaimUID string
	Request  string // as in the allocation: "name" or "name/alternative"
	Device   string
	ShareID  string // empty for a device that is not shared
}

var (
	uidForm   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,35})$`)
	labelForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,62})$`)
)

func (s Share) validate() error {
	if err := validateUID(s.ClaimUID); err != nil {
		return err
	}
	for _, part := range strings.SplitN(s.Request, "/", 2) {
		if !labelForm.MatchString(part) {
			return fmt.Errorf("claim %s: request %q is no name of a request", s.ClaimUID, s.Request)
		}
	}
	if !labelForm.MatchString(s.Device) {
		return fmt.Errorf("claim %s: device %q is no name of a device", s.ClaimUID, s.Device)
	}
	if s.ShareID != "" && !uidForm.MatchString(s.ShareID) {
		return fmt.Errorf("claim %s: share id %q is no UID", s.ClaimUID, s.ShareID)
	}
	return nil
}

func validateUID(uid string) error {
	if !uidForm.MatchString(uid) {
		return fmt.Errorf("claim UID %q is no UID", uid)
	}
	return nil
}

// Name of the share's device in the claim's spec, and of its directory in the container. Distinct for the shares of a
// container whatever claims they come from: UIDs are never used again, names of claims are.
func (s Share) Name() string {
	last := s.ShareID
	if last == "" {
		last = s.Device
	}
	return s.ClaimUID + "." + strings.ReplaceAll(s.Request, "/", ".") + "." + last
}

// SliceID is the broker's id for the share: Name() may be longer than an id. The same share has the same id each time
// that it is prepared.
func (s Share) SliceID() string {
	rest := sha256.Sum256([]byte(s.Request + "\x00" + s.Device + "\x00" + s.ShareID))
	return s.ClaimUID + "." + hex.EncodeToString(rest[:8])
}

// DeviceIDs are what the kubelet hands to the runtime for the share: the GPU, then the slice, whose edits win.
func (s Share) DeviceIDs(baseKind, gpuUUID string) []string {
	return []string{baseKind + "=" + gpuUUID, Kind + "=" + s.Name()}
}
