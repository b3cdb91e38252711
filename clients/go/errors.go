package bray

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Codes that a client adds to those of the server.
const (
	CodeUnreachable    = "unreachable"     // nothing listens there: the request was not sent
	CodeConnectionLost = "connection_lost" // the request may have been executed or not
	CodeBadFrame       = "bad_frame"       // what came is not the protocol
)

// ServiceError is what the server answered instead of a reply.
type ServiceError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *ServiceError) Error() string { return e.Code + ": " + e.Message }

// ConnectionError says that there is no connection. Unless its code is CodeUnreachable the request
// may have been executed or not.
type ConnectionError struct {
	Code    string
	Message string
}

func (e *ConnectionError) Error() string { return e.Code + ": " + e.Message }

// ErrClosed is returned after Close.
var ErrClosed = errors.New("bray: the client is closed")

// FrameError says why bytes are not a frame. The stream cannot be read any further.
type FrameError struct {
	Code      string
	Message   string
	RequestID uint32
}

func (e *FrameError) Error() string { return e.Code + ": " + e.Message }

// parseError reads the body of an error frame, whatever it holds.
func parseError(body []byte) *ServiceError {
	var said struct{ Code, Message *string }
	if json.Unmarshal(body, &said) != nil || said.Code == nil || said.Message == nil {
		if len(body) > 100 {
			body = body[:100]
		}
		return &ServiceError{CodeBadFrame, fmt.Sprintf("an error frame without code and message: %q", body)}
	}
	return &ServiceError{*said.Code, *said.Message}
}
