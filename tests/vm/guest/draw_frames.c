// SPDX-License-Identifier: Apache-2.0
/* Draws frames on a GPU as programs do, through EGL, OpenGL ES and Mesa's driver, and waits for each.
 *
 *   draw_frames NODE FRAMES GATE
 *
 * Each frame is a triangle over the whole picture in a colour of its own; the last one is read back and looked at.
 * It prints `ready`, begins when GATE (a FIFO, say) opens, prints `done`, and holds on with the node open until SIGTERM.
 * It ends without giving anything back: Mesa closes the node first and its buffers after that, with calls that reach no
 * driver. Status 1 and a message in the place of these lines when something is refused, when the picture is wrong,
 * or when it is not virgl that would draw but Mesa itself, without the device.
 */
#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <GLES2/gl2.h>
#include <err.h>
#include <fcntl.h>
#include <gbm.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WIDTH 64
#define HEIGHT 64

static const char VERTEX[] = "attribute vec2 place; void main() { gl_Position = vec4(place, 0.0, 1.0); }";
static const char FRAGMENT[] = "precision mediump float; uniform vec4 colour; void main() { gl_FragColor = colour; }";
static const GLfloat TRIANGLE[] = {-1, -1, 3, -1, -1, 3};

static void must(bool done, const char *what)
{
	if (!done)
		errx(1, "%s: EGL 0x%x, GL 0x%x", what, eglGetError(), glGetError());
}

static void make_context(EGLDisplay display)
{
	static const EGLint config_wanted[] = {EGL_RENDERABLE_TYPE, EGL_OPENGL_ES2_BIT, EGL_NONE};
	static const EGLint context_wanted[] = {EGL_CONTEXT_CLIENT_VERSION, 2, EGL_NONE};
	EGLConfig config;
	EGLContext context;
	EGLint found;

	must(eglInitialize(display, NULL, NULL), "eglInitialize");
	must(eglBindAPI(EGL_OPENGL_ES_API), "eglBindAPI");
	must(eglChooseConfig(display, config_wanted, &config, 1, &found) && found, "eglChooseConfig");
	context = eglCreateContext(display, config, EGL_NO_CONTEXT, context_wanted);
	must(context && eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, context), "eglMakeCurrent");
}

static void make_canvas(void)
{
	GLuint canvas, pixels;

	glGenRenderbuffers(1, &pixels);
	glBindRenderbuffer(GL_RENDERBUFFER, pixels);
	glRenderbufferStorage(GL_RENDERBUFFER, GL_RGBA4, WIDTH, HEIGHT);
	glGenFramebuffers(1, &canvas);
	glBindFramebuffer(GL_FRAMEBUFFER, canvas);
	glFramebufferRenderbuffer(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_RENDERBUFFER, pixels);
	must(glCheckFramebufferStatus(GL_FRAMEBUFFER) == GL_FRAMEBUFFER_COMPLETE, "framebuffer");
	glViewport(0, 0, WIDTH, HEIGHT);
}

static void add_shader(GLuint program, GLenum type, const char *source)
{
	GLuint shader = glCreateShader(type);

	glShaderSource(shader, 1, &source, NULL);
	glCompileShader(shader);
	glAttachShader(program, shader);
}

static GLint make_program(void)
{
	GLuint program = glCreateProgram();
	GLint linked;

	add_shader(program, GL_VERTEX_SHADER, VERTEX);
	add_shader(program, GL_FRAGMENT_SHADER, FRAGMENT);
	glBindAttribLocation(program, 0, "place");
	glLinkProgram(program);
	glGetProgramiv(program, GL_LINK_STATUS, &linked);
	must(linked, "shaders");
	glUseProgram(program);
	glVertexAttribPointer(0, 2, GL_FLOAT, GL_FALSE, 0, TRIANGLE);
	glEnableVertexAttribArray(0);
	return glGetUniformLocation(program, "colour");
}

/* Red tells whether the last frame was an odd one. */
static void draw(int frames)
{
	GLint colour = make_program();
	GLubyte pixel[4];

	for (int frame = 1; frame <= frames; frame++) {
		glUniform4f(colour, frame % 2, 1, 0, 1);
		glDrawArrays(GL_TRIANGLES, 0, 3);
		glFinish();
	}
	glReadPixels(WIDTH / 2, HEIGHT / 2, 1, 1, GL_RGBA, GL_UNSIGNED_BYTE, pixel);
	must(glGetError() == GL_NO_ERROR, "drawing");
	must(pixel[0] == (frames % 2 ? 255 : 0) && pixel[1] == 255 && pixel[2] == 0, "wrong picture");
}

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct gbm_device *device;
	EGLDisplay display;
	const char *renderer;
	sigset_t end;
	int node, signal;

	dup2(STDOUT_FILENO, STDERR_FILENO);
	if (argc != 4)
		errx(2, "NODE FRAMES GATE");
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_BLOCK, &end, NULL);
	node = open(argv[1], O_RDWR | O_CLOEXEC);
	if (node < 0)
		err(1, "%s", argv[1]);
	device = gbm_create_device(node);
	must(device, "gbm_create_device");
	display = eglGetPlatformDisplay(EGL_PLATFORM_GBM_KHR, device, NULL);
	must(display, "eglGetPlatformDisplay");
	make_context(display);
	renderer = (const char *)glGetString(GL_RENDERER);
	must(strstr(renderer, "virgl"), renderer);
	make_canvas();
	say("ready");
	if (open(argv[3], O_RDONLY | O_CLOEXEC) < 0)
		err(1, "%s", argv[3]);
	draw(atoi(argv[2]));
	say("done");
	sigwait(&end, &signal);
	return 0;
}
