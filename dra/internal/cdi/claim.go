// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"cuslice.dev/dra/api/v1alpha1"
)

// Runtimes refuse a spec that is newer than their library, so this is the lowest that has what we write.
const specVersion = "0.5.0"

// mountedSlices is where the library looks for the slices of its container.
const mountedSlices = "/run/cuslice/slice"

// Library is one build of the interposing libraries, installed for containers. A build is never overwritten: running
// containers have it mapped.
type Library struct {
	Directory string // the same path on the node and in containers
}

var libraryFiles = []string{"libcuslice-cuda.so", "libcuslice-nvml.so"}

func (l Library) preloadFile() string { return filepath.Join(l.Directory, "ld.so.preload") }

// preloadList is in the form of LD_PRELOAD.
func (l Library) preloadList() string {
	paths := make([]string, len(libraryFiles))
	for i, name := range libraryFiles {
		paths[i] = filepath.Join(l.Directory, name)
	}
	return strings.Join(paths, ":")
}

func (l Library) preloadText() string {
	return strings.ReplaceAll(l.preloadList(), ":", "\n") + "\n"
}

// check finds what the dynamic loader would pass over with no more than a warning, in a container without limits.
func (l Library) check() error {
	for _, name := range libraryFiles {
		info, err := os.Stat(filepath.Join(l.Directory, name))
		if err != nil {
			return fmt.Errorf("library for containers: %w", err)
		}
		if !info.Mode().IsRegular() || info.Mode().Perm()&0o004 == 0 {
			return fmt.Errorf("library for containers: %s is not a file that every user may read",
				filepath.Join(l.Directory, name))
		}
	}
	text, err := os.ReadFile(l.preloadFile())
	if err != nil {
		return fmt.Errorf("library for containers: %w", err)
	}
	if string(text) != l.preloadText() {
		return fmt.Errorf("library for containers: %s does not name the libraries beside it; install this build again",
			l.preloadFile())
	}
	return nil
}

// ClaimShare is a share with what the broker made for it.
type ClaimShare struct {
	Share
	SliceDirectory string // on the node
	Injection      v1alpha1.Injection
}

// ClaimSpec is the spec of one claim, a device for each of its shares. It adds no device nodes and no device rules: what
// isolates GPUs is that only the base spec's are there.
func ClaimSpec(claimUID string, library Library, shares []ClaimShare) (*specs.Spec, error) {
	if err := validateUID(claimUID); err != nil {
		return nil, err
	}
	if len(shares) == 0 {
		return nil, fmt.Errorf("claim %s: no share of this driver", claimUID)
	}
	spec := &specs.Spec{Version: specVersion, Kind: Kind}
	names := map[string]bool{}
	for _, share := range shares {
		if err := share.validate(); err != nil {
			return nil, err
		}
		if share.ClaimUID != claimUID {
			return nil, fmt.Errorf("claim %s: a share of claim %s", claimUID, share.ClaimUID)
		}
		if names[share.Name()] {
			return nil, fmt.Errorf("claim %s: share %s twice", claimUID, share.Name())
		}
		names[share.Name()] = true
		edits, err := edits(library, share)
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", claimUID, err)
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: share.Name(), ContainerEdits: edits})
	}
	return spec, nil
}

func edits(library Library, share ClaimShare) (specs.ContainerEdits, error) {
	for _, file := range []string{"limits", "state", "attach"} {
		if _, err := os.Stat(filepath.Join(share.SliceDirectory, file)); err != nil {
			return specs.ContainerEdits{}, fmt.Errorf("slice of share %s: %w", share.Name(), err)
		}
	}
	inContainer := filepath.Join(mountedSlices, share.Name())
	result := specs.ContainerEdits{
		// Else NVIDIA's own runtime, where it is the default, adds the GPUs that the image asks for.
		Env: []string{"NVIDIA_VISIBLE_DEVICES=void"},
		Mounts: []*specs.Mount{
			bind(share.SliceDirectory, inContainer, "ro", "noexec"),
			bind(filepath.Join(share.SliceDirectory, "state"), filepath.Join(inContainer, "state"), "rw", "noexec"),
		},
	}
	if share.Injection == v1alpha1.InjectionNone {
		return result, nil
	}
	if err := library.check(); err != nil {
		return specs.ContainerEdits{}, err
	}
	result.Mounts = append(result.Mounts, bind(library.Directory, library.Directory, "ro"))
	switch share.Injection {
	case v1alpha1.InjectionFile:
		result.Mounts = append(result.Mounts, bind(library.preloadFile(), "/etc/ld.so.preload", "ro", "noexec"))
	case v1alpha1.InjectionEnv:
		result.Env = append(result.Env, "LD_PRELOAD="+library.preloadList())
	default:
		return specs.ContainerEdits{}, errors.New("unknown injection " + string(share.Injection))
	}
	return result, nil
}

func bind(hostPath, containerPath string, options ...string) *specs.Mount {
	return &specs.Mount{
		HostPath:      hostPath,
		ContainerPath: containerPath,
		Options:       append(options, "nosuid", "nodev", "rbind", "rprivate"),
	}
}
