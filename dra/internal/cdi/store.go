// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

const (
	filePrefix = "cuslice.dev-slice_"
	fileSuffix = ".json"
	// Runtimes read *.json and *.yaml only.
	temporarySuffix = ".tmp"
)

// Store is the directory of the specs that a runtime reads, and in it the files of our claims. Those of others are left
// alone. Not for use by two goroutines at once.
type Store struct {
	Directory string
}

func (s Store) path(claimUID string) string {
	return filepath.Join(s.Directory, filePrefix+claimUID+fileSuffix)
}

// Write puts the claim's spec in place, whole or not at all, in the stead of the one before. Runtimes take notice of a
// rename within the directory, and never see half a file.
func (s Store) Write(claimUID string, spec *specs.Spec) (err error) {
	if err := validateUID(claimUID); err != nil {
		return err
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return fmt.Errorf("spec of claim %s: %w", claimUID, err)
	}
	// After a boot the directory is gone.
	if err := os.MkdirAll(s.Directory, 0o755); err != nil {
		return fmt.Errorf("spec of claim %s: %w", claimUID, err)
	}
	file, err := os.CreateTemp(s.Directory, filePrefix+claimUID+".*"+temporarySuffix)
	if err != nil {
		return fmt.Errorf("spec of claim %s: %w", claimUID, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("spec of claim %s: %w", claimUID, errors.Join(err, file.Close(), os.Remove(file.Name())))
		}
	}()
	if _, err := file.Write(append(text, '\n')); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), s.path(claimUID)); err != nil {
		return err
	}
	file.Close()
	return nil
}

// Remove is content when there is no spec.
func (s Store) Remove(claimUID string) error {
	if err := validateUID(claimUID); err != nil {
		return err
	}
	if err := os.Remove(s.path(claimUID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("spec of claim %s: %w", claimUID, err)
	}
	return nil
}

// Collect removes the specs of claims that are not `known`, and what a Write that was cut off has left. It answers the
// claims whose specs it removed.
func (s Store) Collect(known func(claimUID string) bool) ([]string, error) {
	entries, err := os.ReadDir(s.Directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("collecting specs: %w", err)
	}
	var removed []string
	var failed []error
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), filePrefix)
		if !ours || !entry.Type().IsRegular() {
			continue
		}
		uid, isSpec := strings.CutSuffix(rest, fileSuffix)
		// "<uid>_metadata_…" is the kubelet plugin helper's.
		if isSpec && (validateUID(uid) != nil || known(uid)) || !isSpec && !strings.HasSuffix(rest, temporarySuffix) {
			continue
		}
		err := os.Remove(filepath.Join(s.Directory, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("collecting specs: %w", err))
			continue
		}
		if isSpec {
			removed = append(removed, uid)
		}
	}
	return removed, errors.Join(failed...)
}
