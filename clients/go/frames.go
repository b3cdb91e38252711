package bray

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Kind is what a frame says.
type Kind uint8

// The kinds of frames.
const (
	KindStart Kind = iota + 1
	KindTick
	KindEnd
	KindCall
	KindReply
	KindError
	KindHello
	KindPing
	KindPong
)

const (
	headerBytes     = 16
	maxSessionBytes = 0xFFFF
	maxBodyBytes    = 0xFFFFFFFF
)

var magic = []byte("BRY")

// Frame is one frame of the protocol.
type Frame struct {
	Kind      Kind
	RequestID uint32
	Session   string
	Body      []byte
}

// appendFrame appends a frame as bytes; its lengths must fit.
func appendFrame(out []byte, frame Frame) []byte {
	out = append(out, 'B', 'R', 'Y', 1, byte(frame.Kind), 0)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(frame.Session)))
	out = binary.LittleEndian.AppendUint32(out, frame.RequestID)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(frame.Body)))
	out = append(out, frame.Session...)
	return append(out, frame.Body...)
}

// readFrame reads one frame. It returns a *FrameError for bytes that are none, io.EOF at an end between
// two frames and io.ErrUnexpectedEOF within one.
func readFrame(from io.Reader, maxBody, maxSession int) (Frame, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return Frame{}, err
	}
	frame := Frame{Kind: Kind(header[4]), RequestID: binary.LittleEndian.Uint32(header[8:])}
	sessionSize := int(binary.LittleEndian.Uint16(header[6:]))
	bodySize := int64(binary.LittleEndian.Uint32(header[12:]))
	if err := checkHeader(header[:]); err != nil {
		return Frame{}, err
	}
	if bodySize > int64(maxBody) {
		return Frame{}, tooLong("body_too_large", "a body", bodySize, maxBody, frame.RequestID)
	}
	if sessionSize > maxSession {
		return Frame{}, tooLong("bad_session", "a session id", int64(sessionSize), maxSession, frame.RequestID)
	}
	// Copied as it comes: a length alone allocates nothing.
	var rest bytes.Buffer
	if _, err := io.CopyN(&rest, from, int64(sessionSize)+bodySize); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	frame.Session = string(rest.Next(sessionSize))
	frame.Body = rest.Bytes()
	if !utf8.ValidString(frame.Session) {
		return Frame{}, &FrameError{"bad_session", "the session id is not UTF-8", frame.RequestID}
	}
	return frame, nil
}

func checkHeader(header []byte) error {
	if !bytes.Equal(header[:3], magic) || header[3] != 1 {
		message := fmt.Sprintf("expected the magic BRY and version 1, got %q", header[:4])
		return &FrameError{CodeBadFrame, message, 0}
	}
	id := binary.LittleEndian.Uint32(header[8:])
	if kind := Kind(header[4]); kind < KindStart || kind > KindPong {
		return &FrameError{CodeBadFrame, fmt.Sprintf("expected a kind of 1 to 9, got %d", kind), id}
	}
	if header[5] != 0 {
		return &FrameError{CodeBadFrame, fmt.Sprintf("expected flags 0, got %d", header[5]), id}
	}
	return nil
}

func tooLong(code, what string, size int64, limit int, id uint32) error {
	message := fmt.Sprintf("%s of %d bytes exceeds the limit of %d", what, size, limit)
	return &FrameError{code, message, id}
}
